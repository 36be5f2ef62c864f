"""What the processes of a job write to files, read in pieces of a bounded size: a log may have a gigabyte."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TAIL_BYTES = 1 << 16
TAIL_LINES = 20
LINE_CHARACTERS = 1000
CHUNK_BYTES = 1 << 19  # of events read at once, and the longest event there can be
THREADS_LEFT = "terminate called without an active exception"
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception|Interrupt)(:|$)")


def end_of(path: Path) -> str:
    """The last 64 KB of a file; nothing where it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""


def shortened(line: str) -> str:
    """A line, or its first 1,000 characters with a mark."""
    cut = len(line) - LINE_CHARACTERS
    return line if cut <= 0 else f"{line[:LINE_CHARACTERS]} ... (cut here)"


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, long ones cut."""
    return [shortened(line) for line in end_of(path).splitlines()[-lines:]]


def uncaught(lines: list[str], code: int | None) -> str | None:
    """What a Python program died of: the exception at the end of its log, if it ended as Python then does (code 1).

    An exception further up was handled, or the log would have ended with it. In a DGL server, threads are still running
    when Python ends, and C++ then aborts the process with a line of its own.
    """
    kept = [line.strip() for line in lines if line.strip()]
    if code == -signal.SIGABRT and kept and kept[-1] == THREADS_LEFT:
        del kept[-1]
    elif code != 1:
        return None
    return kept[-1] if kept and _EXCEPTION.match(kept[-1]) else None


class EventFiles:
    """The files to which this machine's trainers append JSON lines, and how far each has been read.

    Args:
        folder: the machine's log folder.

    Attributes:
        more: the last call has not read everything.
    """

    def __init__(self, folder: Path) -> None:
        self.more = False
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._overlong: set[Path] = set()

    def new(self) -> Iterator[dict[str, Any]]:
        """Events since the last call, at most half a megabyte of each file; what is not an event is passed over."""
        self.more = False
        for path in self._folder.glob("events-*.jsonl"):
            offset = self._offsets.get(path, 0)
            with contextlib.suppress(OSError), path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read(CHUNK_BYTES)
                self.more = self.more or len(data) == CHUNK_BYTES
                end = data.rfind(b"\n") + 1  # a line may be half written
                lines = data[:end].splitlines()
                if path in self._overlong and end:  # the rest of a line that was too long
                    self._overlong.discard(path)
                    del lines[0]
                if not end and len(data) == CHUNK_BYTES:
                    self._overlong.add(path)
                    end = len(data)
                self._offsets[path] = offset + end
                yield from filter(None, map(_event, lines))


def _event(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            return event
    return None
