"""What the processes of a job write to files, read in pieces of a bounded size: a log may have a gigabyte."""

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
CHUNK_BYTES = 1 << 19  # of events read at once, and the longest event there can be
LINES_PER_SECOND = 200  # of one trainer that are shown; what is more is counted and stays in the log
PIECE = 1 << 16
END = 1 << 14  # bytes that are still shown of each end when more than a piece is waiting
_LOG = re.compile(r"trainer-(\d+)\.log")
THREADS_LEFT = "terminate called without an active exception"
# The first line that DGL or libxsmm prints in a process that a signal ends.
_ENDED_BY_SIGNAL = re.compile(
    rb"\[[\d:]+\] \S*/rpc\.cc:\d+:\s*$|User pressed Ctrl\+C, Exiting|LIBXSMM_VERSION: |%s$" % THREADS_LEFT.encode()
)
ONE_A_MACHINE = ("agent", "forkserver", "torchrun")
WORKERS = ("sampler", "worker")  # of a trainer, by whose number they go
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception|Interrupt)(:|$)")


def log_name(role: str, k: int) -> str:
    """Of process ``k`` of a role on its machine; what a trainer starts has no log of its own."""
    return f"{role}.log" if role in ONE_A_MACHINE else f"{'trainer' if role in WORKERS else role}-{k}.log"


def end_of(path: Path, most: int = TAIL_BYTES) -> str:
    """The end of a text file, at most so many bytes; nothing where it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode(errors="replace")
    return ""


def tail(path: Path) -> list[str]:
    """The last lines of a log, of its last 64 KB at most, long ones cut; nothing where it cannot be read."""
    return [shortened(line) for line in end_of(path).splitlines()[-TAIL_LINES:]]


def shortened(line: str) -> str:
    """A line, or its first 1,000 characters with a mark."""
    return line[:LINE_CHARACTERS] + " ... (cut here)" * (len(line) > LINE_CHARACTERS)


def who_failed(logs: Path, code: int) -> tuple[str, int, int]:
    """Role, index and exit code of the trainer that torchrun named as its first failure, else ``code`` of torchrun."""
    match = re.search(r"exitcode: (-?\d+)\) local_rank: (\d+)", end_of(logs / log_name("torchrun", 0)))
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
    """The files to which a machine's trainers append JSON lines, in its log folder, and how far each has been read."""

    def __init__(self, folder: Path) -> None:
        self.more = False  # the last call has not read everything
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


@dataclass
class _File:
    offset: int
    skipped: int = 0
    room: float = LINES_PER_SECOND
    filled: float = 0.0
    ended: bool = False


class OutputFiles:
    """The logs of this machine's trainers, and how far each is shown: whole lines, and no more than can be read.

    What an earlier job has left in the logs is not shown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {path: _File(path.stat().st_size) for path in folder.glob("trainer-*.log")}

    def new(self, *, rest: bool = False) -> Iterator[dict[str, Any]]:
        """``trainer`` (its number), ``lines`` and ``skipped`` (how many before them are in the log only), where any.

        Of a burst the first lines and the last: in two of these.
        ``rest``: the trainers have ended; also a last line without an end.
        """
        for path in sorted(self._folder.glob("trainer-*.log")):
            if not (found := _LOG.fullmatch(path.name)):
                continue
            file = self._files.setdefault(path, _File(0))
            first, between, last = self._waiting(path, file, rest)
            first, last = _before_signal(file, first), _before_signal(file, last)
            first, between, last = _within(file, first, between, last)
            for lines, skipped in [(first, 0), (last, between)] if between else [(first + last, 0)]:
                file.skipped += skipped
                if lines or (rest and file.skipped):
                    shown = [_shown(line) for line in lines]
                    yield {"trainer": int(found[1]), "lines": shown, "skipped": file.skipped}
                    file.skipped = 0

    def _waiting(self, path: Path, file: _File, rest: bool) -> tuple[list[bytes], int, list[bytes]]:
        """What was written since: lines; where it is more than a piece, how many follow them, and the last ones."""
        first, between, data = b"", 0, b""
        with contextlib.suppress(OSError), path.open("rb") as stream:
            waiting = os.fstat(stream.fileno()).st_size - file.offset
            stream.seek(file.offset)
            if waiting > PIECE:  # far behind: only count, in bounded memory
                first = stream.read(END)
                first = first[: first.rfind(b"\n") + 1]
                stream.seek(file.offset + len(first))
                waiting -= len(first)
                piece = b""
                while waiting > END and (piece := stream.read(min(PIECE, waiting - END))):
                    between += piece.count(b"\n")
                    waiting -= len(piece)
                if between and piece and not piece.endswith(b"\n"):  # in the middle of a line
                    stream.readline(END)
                    between += 1
                file.offset = stream.tell()
            data = stream.read(PIECE)
        end = len(data) if rest and data else data.rfind(b"\n") + 1
        if not end and len(data) == PIECE:  # one line of this length; the log has it
            end = len(data)
        file.offset += end
        return _split(first), between, _split(data[:end])


def _split(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []


def _before_signal(file: _File, lines: list[bytes]) -> list[bytes]:
    """Return the lines that a process wrote before a signal ended it. The log also has the later ones."""
    end = next((k for k, line in enumerate(lines) if _ENDED_BY_SIGNAL.match(line)), len(lines))
    before = [] if file.ended else lines[:end]
    file.ended |= end < len(lines)
    return before


def _within(file: _File, first: list[bytes], between: int, last: list[bytes]) -> tuple[list[bytes], int, list[bytes]]:
    """As many of the first and of the last as may be shown now, and how many are then between them."""
    now = time.monotonic()
    file.room = min(LINES_PER_SECOND, file.room + LINES_PER_SECOND * (now - file.filled))
    file.filled = now
    room, count = int(file.room), len(first) + between + len(last)
    if len(first) + len(last) > room:
        if not between:
            first = last = [*first, *last]
        first = first[: room // 2]
        last = last[max(0, len(last) - room + len(first)) :]
    file.room -= len(first) + len(last)
    return first, count - len(first) - len(last), last


def _shown(line: bytes) -> str:
    """As a terminal would leave it: of a progress bar's many states in one line, the last."""
    states = [state for state in line.decode(errors="replace").split("\r") if state.strip()]
    return shortened(states[-1].rstrip() if states else "")
