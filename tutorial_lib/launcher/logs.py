"""Read the files that the processes of a job write, in chunks of a bounded size, because a log can have gigabytes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 1 << 16
TAIL_LINES = 20
LINE_CHARACTERS = 1000
CHUNK_BYTES = 1 << 19  # read at once, and the longest event
MOST_CHUNKS = 100  # read in one call from the log of one trainer
LINES_PER_SECOND = 200  # shown of one trainer
ONE_A_MACHINE = ("agent", "forkserver")
WORKERS = ("sampler", "worker")  # processes that a trainer starts, which have the index of the trainer
THREADS_LEFT = "terminate called without an active exception"
# Pattern of messages of gloo, a store or a pipe after the death of the other process. They are not the first cause.
PEER_GONE = r"Connection (reset|closed|refused)|[Rr]eset by peer|[Cc]losed by peer|[Cc]onnection refused|Broken pipe"
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception|Interrupt)(:|$)")


def log_name(role: str, k: int) -> str:
    """Return the name of the log of process ``k`` of a role. The processes of a trainer write to its log."""
    if role in ONE_A_MACHINE:
        return f"{role}.log"
    return f"{'trainer' if role in WORKERS else role}-{k}.log"


def end_of(path: Path, most: int = TAIL_BYTES) -> str:
    """Return the last ``most`` bytes of a text file, or an empty string if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode(errors="replace")
    return ""


def tail(path: Path) -> list[str]:
    """Return the last 20 lines of a log, with long lines cut, or an empty list if it cannot be read."""
    return [shortened(line) for line in end_of(path).splitlines()[-TAIL_LINES:]]


def shortened(line: str) -> str:
    """Return a line, or its first 1,000 characters with a mark."""
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} ... (cut here)"


def uncaught(lines: list[str], code: int | None) -> str | None:
    """Return the exception at the end of the log of a Python program if the exit code shows that it was not handled.

    Python ends with code 1 after an exception. A DGL server still runs threads then, and C++ aborts the process after
    a line of its own. If the program handles an exception, other lines follow it.
    """
    kept = [line.strip() for line in lines if line.strip()]
    if code == -signal.SIGABRT and kept and kept[-1] == THREADS_LEFT:
        del kept[-1]
    elif code != 1:
        return None
    return kept[-1] if kept and _EXCEPTION.match(kept[-1]) else None


def _read_lines(path: Path, offset: int, rest: bool = False) -> tuple[list[bytes], int, bool]:
    """Return the complete lines of a chunk, the offset of the next chunk, and whether the file has more than the chunk.

    A line that fills the chunk is returned in parts. If ``rest`` is true, the last line needs no end.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        full = len(data) == CHUNK_BYTES
        end = data.rfind(b"\n") + 1
        if (rest and not full) or (full and end == 0):
            end = len(data)
        lines = data[:end].removesuffix(b"\n").split(b"\n") if end else []
        return lines, offset + end, full
    return [], offset, False


class EventFiles:
    """The files in a log folder to which the ranks of a machine append events as JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.more = False  # the last call has not read everything
        self._folder, self._offsets = folder, dict[Path, int]()

    def new(self) -> Iterator[dict[str, Any]]:
        """Return events since the last call, at most half a megabyte of each file. Other lines are skipped."""
        self.more = False
        for path in self._folder.glob("events-*.jsonl"):
            lines, self._offsets[path], full = _read_lines(path, self._offsets.get(path, 0))
            self.more = self.more or full
            for line in lines:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("kind"), str):
                        yield event


@dataclass
class _TrainerLog:
    offset: int = 0
    skipped: int = 0
    second: float = 0.0
    room: int = 0


class OutputFiles:
    """The logs of the trainers of a machine. Lines that were there before this object was made are not returned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs = {path: _TrainerLog(path.stat().st_size) for path in folder.glob("trainer-*.log")}

    def new(self, *, rest: bool = False) -> Iterator[dict[str, Any]]:
        """Return for each trainer its new lines, after the number of ``skipped`` lines that only the log contains.

        Of a burst, the last 200 lines are returned. ``rest``: the trainers have ended, so the last line needs no end.
        """
        for path in sorted(self._folder.glob("trainer-*.log")):
            log, lines = self._logs.setdefault(path, _TrainerLog()), []
            for _ in range(MOST_CHUNKS):
                log.skipped += len(lines)
                lines, log.offset, more = _read_lines(path, log.offset, rest)
                if not more:
                    break
            if (now := time.monotonic()) - log.second >= 1 or rest:
                log.second, log.room = now, LINES_PER_SECOND
            shown = [_as_on_terminal(line) for line in lines[max(0, len(lines) - log.room) :]]
            log.room -= len(shown)
            log.skipped += len(lines) - len(shown)
            if shown or (rest and log.skipped):
                yield {"trainer": int(path.stem.split("-")[1]), "lines": shown, "skipped": log.skipped}
                log.skipped = 0


def _as_on_terminal(line: bytes) -> str:
    """Return the last state of a progress bar, whose states are separated by carriage returns."""
    states = [state for state in line.decode(errors="replace").split("\r") if state.strip()]
    return shortened(states[-1].rstrip() if states else "")
