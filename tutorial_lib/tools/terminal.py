"""Output of the command line: streams that outlive their readers, and the report of an error."""

from __future__ import annotations

import contextlib
import errno
import io
import select
import sys
from typing import Any

from tutorial_lib.errors import TutorialError, printable
from tutorial_lib.launcher.failure import JobFailed


class LastingFile(io.FileIO):
    """A file whose writes never fail, because a long job must not end when nobody reads its output any more.

    Attributes:
        lost: why output was lost, for example by a full disk. It stays empty if a reader or a terminal is gone.
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

    Args:
        like: the stream that it replaces, or None if the descriptor was closed at the start.
    """
    by_line = like is None or like.line_buffering or like.write_through
    encoding = getattr(like, "encoding", None) or "utf-8"
    file = io.BufferedWriter(LastingFile(number, "w", closefd=False))
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=by_line)


def lost_output() -> str:
    """Return why a part of the standard output was lost, or an empty text."""
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.flush()
        buffer: Any = sys.stdout.buffer
        return buffer.raw.lost
    return ""


def print_failure(error: TutorialError) -> None:
    """Print an error to standard error: the cause, the remedy, and the log of the process that failed."""
    print(f"error: {printable(error.message)}", file=sys.stderr)
    for number, line in enumerate(printable(error.remedy).splitlines()):
        print(f"{'what to do: ' if number == 0 else '            '}{line}", file=sys.stderr)
    if isinstance(error, JobFailed):
        print(f"log: {error.log}", file=sys.stderr)
        for line in error.tail:
            print(f"  | {printable(line)}", file=sys.stderr)
