"""Waits that end: each has a limit, says after two seconds what it waits for, and can be interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from tutorial_lib.errors import JobError

NOTICE_SECONDS = 2.0


class WaitedTooLong(JobError):
    """Something did not come in time."""


def to_stderr(text: str) -> None:
    """One line that does not disturb what a program prints for others to read."""
    print(text, file=sys.stderr, flush=True)


def attempts(
    what: str, seconds: float, *, pause: float = 0.1, say: Callable[[str], None] = to_stderr, remedy: str = ""
) -> Iterator[float]:
    """Try again and again: ``for left in attempts("the lock of X", 60): if taken(): break``.

    Args:
        what: what is waited for, as the object of "waiting for".
        seconds: the limit. There is always one attempt, and one after the last pause.
        pause: seconds between two attempts; 0 where an attempt itself waits, for at most the seconds that it is given.
        say: takes ``waiting for ...`` once, after two seconds.

    Yields:
        The seconds that are left.

    Raises:
        WaitedTooLong: none of the attempts within the limit ended the loop.
    """
    start = time.monotonic()
    said = False
    while True:
        waited = time.monotonic() - start
        yield max(0.0, seconds - waited)
        waited = time.monotonic() - start
        if waited >= seconds:
            raise WaitedTooLong(f"waited {seconds:g} s for {what}", remedy)
        if not said and waited >= NOTICE_SECONDS:
            said = True
            say(f"waiting for {what} (for at most {seconds:g} s)")
        time.sleep(min(pause, seconds - waited))
