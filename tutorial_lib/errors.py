"""Errors with a remedy and an exit code, waits with a time limit, and sentences about the end of a process.

A user's mistake never causes a traceback. The command line prints ``error: <message>`` and the remedy.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping

NOTICE_SECONDS = 2.0
Log = Callable[[str], None]


class TutorialError(Exception):
    """An error with a message of one line, and a remedy of any number of lines."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


class InputError(TutorialError):
    """A wrong argument, file or data set, found before any process was started (exit code 2)."""

    exit_code = 2


class JobError(TutorialError):
    """A job that was started and failed (exit code 1)."""


class WaitedTooLong(JobError):
    """A wait that reached its time limit."""


def describe_exit_code(exit_code: int) -> str:
    """Describe an exit code, such as "exit code 1" or "killed by signal 9 (SIGKILL)", with a likely reason."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    names = {number.value: number.name for number in signal.Signals}
    hint = "; /dev/shm was full, or another job wrote to the same files in it" if exit_code == -signal.SIGBUS else ""
    return f"killed by signal {-exit_code} ({names.get(-exit_code, f'signal {-exit_code}')}{hint})"


def printable(text: str) -> str:
    """Escape control characters, so that the content of a file cannot control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def ask_yes_no(question: str) -> bool:
    """Return whether the user at the terminal agrees. Without a terminal, the answer is no."""
    in_notebook = "JPY_PARENT_PID" in os.environ  # a kernel inherits a terminal that its user cannot type into
    if not in_notebook and sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(EOFError):
            return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    return False


def check_trust(source: object, values: Mapping[str, object], *, trust: bool) -> None:
    """Ask before a command uses values from a file that another user may have written. A refusal is an InputError."""
    if trust or not values:
        return
    shown = printable(", ".join(f"{name} {value}" for name, value in values.items())).replace("\n", "\\n")
    message = f"{printable(str(source))} decides which programs, machines and files this command uses: {shown}"
    if not ask_yes_no(f"{message}.\nWhoever wrote this file can run programs as you. Use these values?"):
        remedy = "If you wrote this file or trust its author, add --trust. Otherwise give your own values as options."
        raise InputError(message, remedy)


def print_to_stderr(text: str) -> None:
    """Print a message to standard error, separate from the output of a command."""
    print(text, file=sys.stderr, flush=True)


def retry_until_timeout(
    goal: str, seconds: float, *, pause: float = 0.1, log: Log = print_to_stderr, remedy: str = ""
) -> Iterator[float]:
    """Repeat a loop body, which gets the remaining seconds, until it breaks. Use ``pause=0`` if the body itself waits.

    After two seconds, ``log`` reports the wait once. After all seconds, a WaitedTooLong is raised.
    """
    start = time.monotonic()
    notified = False
    while True:
        yield max(0.0, seconds - (time.monotonic() - start))
        waited = time.monotonic() - start
        if waited >= seconds:
            raise WaitedTooLong(f"waited {seconds:g} s for {goal}" if seconds else f"blocked by {goal}", remedy)
        if not notified and waited >= NOTICE_SECONDS:
            notified = True
            log(f"waiting for {goal} (for at most {seconds:g} s)")
        time.sleep(min(pause, seconds - waited))
