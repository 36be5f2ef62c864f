"""Errors that carry a cause and a remedy and know their exit code, waits that end in one, and how a process ends.

A mistake of the user's never shows as a traceback: the command line prints
``error: <message>`` and, where there is one, ``what to do: <remedy>``.
Every wait has a limit, says after two seconds what it waits for, and can be interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

NOTICE_SECONDS = 2.0
# What gloo, the trainers' store or a pipe says in a process whose peer has died: an effect, not the cause. A pattern.
PEER_GONE = r"Connection (reset|closed|refused)|[Rr]eset by peer|[Cc]losed by peer|[Cc]onnection refused|Broken pipe"


class TutorialError(Exception):
    """Something went wrong that we can explain.

    Args:
        message: one line that says what is wrong and where.
        remedy: what the user can do about it; may span lines, may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


class InputError(TutorialError):
    """A wrong argument, file or data set: found before any process was started (exit code 2)."""

    exit_code = 2


class JobError(TutorialError):
    """A job that was started and failed (exit code 1)."""


class WaitedTooLong(JobError):
    """Something did not come in time."""


def signal_name(exit_code: int | None) -> str | None:
    """``-9`` to ``SIGKILL``; None for a code that is no signal's."""
    if exit_code is None or exit_code >= 0:
        return None
    known = {number.value: number.name for number in signal.Signals}
    return known.get(-exit_code, f"signal {-exit_code}")


def how_it_ended(exit_code: int) -> str:
    """``1`` to "exit code 1", ``-9`` to "killed by signal 9 (SIGKILL)", with a likely reason where there is one."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    full = "; /dev/shm was full, or another job wrote to the same files in it" if exit_code == -signal.SIGBUS else ""
    return f"killed by signal {-exit_code} ({signal_name(exit_code)}{full})"


def how_it_was_ended(exit_code: object) -> str:
    """Return a sentence for a command that a person or a signal ended, by its exit code; empty for other codes."""
    ended: dict[object, str] = {130: "interrupted", 143: "told to end (SIGTERM)", 129: "told to end (SIGHUP)"}
    return f"{ended[exit_code]}; everything that was started has been stopped" if exit_code in ended else ""


def as_a_shell_says(exit_code: int) -> int:
    """The code of a process as it is, but 137 for one that SIGKILL (9) has ended: what a shell reports."""
    return exit_code if exit_code >= 0 else 128 - exit_code


@contextlib.contextmanager
def first_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Meanwhile the first SIGTERM calls ``act`` alone, and a second one does what it did before.

    Nothing is changed in another thread than the main one, or where the program has no handler of its own.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handler(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        act()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def printable(text: str) -> str:
    """Escape control characters, so that the content of a file cannot change what the terminal shows."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def ask(question: str) -> bool | None:
    """Return the answer of the person at the terminal, or None if nobody can be asked."""
    in_notebook = "JPY_PARENT_PID" in os.environ  # there, output goes to a terminal, and nobody is at its keyboard
    if in_notebook or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    with contextlib.suppress(EOFError):
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    return False


def check_trust(where: object, values: Mapping[str, object], *, trust: bool) -> None:
    """Ask before a command uses values from a file that somebody else may have written.

    Args:
        where: the file.
        values: by the name that the user knows. An empty mapping needs no answer.
        trust: the user has agreed already (``--trust``).

    Raises:
        InputError: the answer is no, or nobody can be asked.
    """
    if trust or not values:
        return
    shown = printable(", ".join(f"{name} {value}" for name, value in values.items())).replace("\n", "\\n")
    message = f"{printable(str(where))} decides which programs, machines and files this command uses: {shown}"
    if not ask(f"{message}.\nWhoever wrote this file can run programs as you. Use these values?"):
        remedy = "If you wrote this file or trust its author, add --trust. Otherwise give your own values as options."
        raise InputError(message, remedy)


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
    start, said = time.monotonic(), False
    while True:
        yield max(0.0, seconds - (time.monotonic() - start))
        waited = time.monotonic() - start
        if waited >= seconds:
            raise WaitedTooLong(f"waited {seconds:g} s for {what}", remedy)
        if not said and waited >= NOTICE_SECONDS:
            said = True
            say(f"waiting for {what} (for at most {seconds:g} s)")
        time.sleep(min(pause, seconds - waited))
