"""With ``train --trace``: what a process does when, in finer pieces than the phases of a step. Else nothing is kept.

A piece is ``[thread, name, start, seconds, facts]``; start is in seconds since 1970, facts are JSON. ``trainer.events``
sends them home. Pieces of a thread lie inside each other, or one after the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

on = "TUTORIAL_TRACE" in os.environ
_found: deque[list[Any]] = deque()


def add(name: str, start: float, thread: str = "", **facts: Any) -> None:
    """A piece that ends now."""
    thread = thread or threading.current_thread().name
    _found.append([thread, name, round(start, 6), round(time.time() - start, 6), facts])


@contextmanager
def piece(name: str, **facts: Any) -> Iterator[dict[str, Any]]:
    """The body is a piece; it may add to the facts that it is given."""
    if not on:
        yield facts
        return
    start = time.time()
    yield facts
    add(name, start, **facts)


def taken(most: int = 1000) -> list[list[Any]]:
    """The oldest pieces, at most so many, which are then forgotten; any thread may add meanwhile."""
    return [_found.popleft() for _ in range(min(most, len(_found)))]
