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
ONE_A_MACHINE = ("agent", "torchrun")
WORKERS = ("sampler", "worker")  # of a trainer, by whose number they go
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception|Interrupt)(:|$)")


def log_name(role: str, k: int) -> str:
    """Of process ``k`` of a role on its machine; what a trainer starts has no log of its own."""
    return f"{role}.log" if role in ONE_A_MACHINE else f"{'trainer' if role in WORKERS else role}-{k}.log"


def _end_of(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""


def tail(path: Path) -> list[str]:
    """The last lines of a log, of its last 64 KB at most, long ones cut; nothing where it cannot be read."""
    lines = _end_of(path).splitlines()[-TAIL_LINES:]
    return [shortened(line) for line in lines]


def shortened(line: str) -> str:
    """A line, or its first 1,000 characters with a mark."""
    return line[:LINE_CHARACTERS] + " ... (cut here)" * (len(line) > LINE_CHARACTERS)


def who_failed(logs: Path, code: int) -> tuple[str, int, int]:
    """Role, index and exit code of the trainer that torchrun named as its first failure, else ``code`` of torchrun."""
    match = re.search(r"exitcode: (-?\d+)\) local_rank: (\d+)", _end_of(logs / log_name("torchrun", 0)))
    if match and (logs / log_name("trainer", int(match[2]))).exists():
        return "trainer", int(match[2]), int(match[1])
    return "torchrun", 0, code


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
    """The files to which a machine's trainers append JSON lines, in its log folder, and how far each has been read.

    Attributes:
        more: the last call has not read everything.
    """

    def __init__(self, folder: Path) -> None:
        self.more = False
        self._folder, self._offsets = folder, dict[Path, int]()

    def new(self) -> Iterator[dict[str, Any]]:
        """Events since the last call, at most half a megabyte of each file; what is not an event is passed over."""
        self.more = False
        for path in self._folder.glob("events-*.jsonl"):
            offset = self._offsets.get(path, 0)
            with contextlib.suppress(OSError), path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read(CHUNK_BYTES)
                full = len(data) == CHUNK_BYTES
                self.more = self.more or full
                # A line may be half written. One that fills a whole piece is too long: it is skipped, as is its rest.
                end = data.rfind(b"\n") + 1 or (len(data) if full else 0)
                self._offsets[path] = offset + end
                for line in data[:end].splitlines():
                    with contextlib.suppress(ValueError):
                        event = json.loads(line)
                        if isinstance(event, dict) and isinstance(event.get("kind"), str):
                            yield event
