"""Output of the command line: streams that outlive their readers, and the report of an error."""

import contextlib
import errno
import io
import select
import sys
from typing import Any

from tutorial_lib.errors import TutorialError, printable, to_stderr
from tutorial_lib.launcher.failure import JobFailed


class LastingFile(io.FileIO):
    """A file whose writes never fail, because a long job must not end when nobody reads its output any more.

    ``lost`` has the reason if output was lost on a full disk. It stays empty if a reader or a terminal is gone.
    """

    lost = ""

    def write(self, data: Any) -> int:
        try:
            if (written := super().write(data)) is None:  # another program made this pipe non-blocking
                select.select([], [self], [], 1.0)
                written = super().write(data)
            return written or len(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                self.lost = error.strerror or str(error)
            return len(data)


def lasting_stream(like: Any, number: int) -> io.TextIOWrapper:
    """Return a text stream to a file descriptor that never fails and writes any text in any locale.

    ``like`` is the stream that it replaces, or None if the descriptor was closed at the start.
    """
    by_line = like is None or like.line_buffering or like.write_through
    file = io.BufferedWriter(LastingFile(number, "w", closefd=False))
    return io.TextIOWrapper(file, getattr(like, "encoding", "utf-8"), "backslashreplace", line_buffering=by_line)


def warn_of_lost_output() -> None:
    """Print a warning if a part of the standard output was lost."""
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.flush()
        buffer: Any = sys.stdout.buffer
        if lost := buffer.raw.lost:
            to_stderr(f"warning: a part of the output could not be written: {lost}")


def print_failure(error: TutorialError) -> None:
    """Print an error to standard error: the cause, the remedy, and the log of the process that failed."""
    to_stderr(f"error: {printable(error.message)}")
    for number, line in enumerate(printable(error.remedy).splitlines()):
        to_stderr(f"{'            ' if number else 'what to do: '}{line}")
    if isinstance(error, JobFailed):
        to_stderr("\n".join([f"log: {error.log}", *(f"  | {printable(line)}" for line in error.tail)]))
