"""The one thread that samples and fetches batches ahead of their use.

A process has one such thread because DGL's connection to the servers serves one caller at a time, and because DGL gives
every thread a random generator. With one thread, equal seeds sample equal batches. DGL releases the interpreter lock
while it waits for a server, so the main thread computes meanwhile.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

import torch
from dgl.utils import set_num_threads

from tutorial_lib.errors import NOTICE_SECONDS, attempts

Item = TypeVar("Item")
WAIT_SECONDS, CLOSE_SECONDS = 600, 10


@cache
def sampling_thread() -> ThreadPoolExecutor:
    """Return the thread, which starts with its first task."""
    return ThreadPoolExecutor(1, "batches", initializer=_use_one_core)


def _use_one_core() -> None:
    """Set one OpenMP thread, because a new thread starts with the default and would take cores from the training."""
    torch.set_num_threads(1)
    set_num_threads(1)


def run(work: Callable[[], Item], what: str) -> Item:
    """Call ``work`` in the sampling thread and return its result."""
    return _result(sampling_thread().submit(work), what)


def prefetch(make: Callable[[], Generator[Item, None, None]], depth: int, what: str) -> Generator[Item, None, None]:
    """Yield the items of a generator that runs in the sampling thread and makes ``depth`` items ahead of their use."""
    iterator, end = run(make, what), object()
    submit: Any = partial(sampling_thread().submit, next, iterator, end)
    pending = deque([submit()])
    try:
        while (item := _result(pending.popleft(), what)) is not end:
            pending.extend(submit() for _ in range(depth - len(pending)))  # the thread starts before the item is used
            yield item
            pending.extend(submit() for _ in range(1 - len(pending)))
    finally:
        for future in pending:
            future.cancel()
        # The caller may use the connection to the servers as soon as this returns. At exit no thread can be started.
        with suppress(RuntimeError):
            wait([*pending, sampling_thread().submit(iterator.close)], CLOSE_SECONDS)


def _result(future: Future[Item], what: str) -> Item:
    for left in attempts(f"{what}, which a thread fetches from the servers", WAIT_SECONDS, pause=0):
        wait([future], min(left, NOTICE_SECONDS))
        if future.done():
            break
    return future.result()
