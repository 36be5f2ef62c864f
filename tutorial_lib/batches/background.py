"""The one thread that draws and fetches batches ahead of their use.

One thread for the whole process, because DGL's connection to the servers serves one caller at a time, and because DGL
and GraphBolt give every new thread a random generator of its own: with one thread, equal seeds draw equal batches.
DGL lets go of Python's lock while it waits for a server, so the main thread computes in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from tutorial_lib.errors import NOTICE_SECONDS, attempts

Item = TypeVar("Item")

WAIT_SECONDS, LEFT_SECONDS = 600, 10


@cache
def background() -> ThreadPoolExecutor:
    """The thread, started at its first use."""
    return ThreadPoolExecutor(1, "batches", initializer=_one_thread)


def _one_thread() -> None:
    """New threads begin with OpenMP's default; this one must not take cores from the computing."""
    import torch
    from dgl.utils import set_num_threads

    torch.set_num_threads(1)
    set_num_threads(1)


def run(work: Callable[[], Item], what: str) -> Item:
    """Do ``work`` in the thread and wait for it, with the limit of ``ahead``."""
    return _result(background().submit(work), what)


def ahead(make: Callable[[], Generator[Item, None, None]], depth: int, what: str) -> Generator[Item, None, None]:
    """The items of a generator that the thread makes, drives and closes, at most ``depth`` of them ahead of their use.

    Args:
        make: makes the generator; is called in the thread.
        depth: 0 makes each item when it is asked for, and nothing overlaps.
        what: what is waited for, for the messages after two seconds and after ``WAIT_SECONDS``.

    Raises:
        WaitedTooLong: no item in time. Whatever the generator raises is raised here, in its place in the order.
    """
    iterator = run(make, what)
    end: Any = object()
    pending = deque([background().submit(next, iterator, end)])
    try:
        while (item := _result(pending.popleft(), what)) is not end:
            while len(pending) < depth:  # begun before this one is used
                pending.append(background().submit(next, iterator, end))
            yield item
            if not pending:
                pending.append(background().submit(next, iterator, end))
    finally:
        for future in pending:
            future.cancel()
        # Who leaves early may use the connection to the servers at once. At the interpreter's end, nobody does.
        with suppress(RuntimeError):
            wait([*pending, background().submit(iterator.close)], LEFT_SECONDS)


def _result(future: Future[Item], what: str) -> Item:
    for left in attempts(f"{what}, which a thread fetches from the servers", WAIT_SECONDS, pause=0):
        wait([future], min(left, NOTICE_SECONDS))
        if future.done():
            break
    return future.result()
