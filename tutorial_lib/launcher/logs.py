"""Read the files that the processes of a job write, in parts of a bounded size because a log can have gigabytes."""

import collections
import contextlib
import io
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tutorial_lib.files import JsonObject

TAIL_BYTES = 1 << 16
TAIL_LINES = 20
LINE_CHARACTERS = 1000
READ_BYTES = 1 << 20  # bytes per file and call, and of the longest event
OUTPUT_BYTES = 1 << 14  # bytes of a trainer's output to show at a time
ONE_A_MACHINE = ("agent", "forkserver")
WORKERS = ("sampler", "worker")  # processes that a trainer starts, which have the index of the trainer
THREADS_LEFT = "terminate called without an active exception"
# Pattern of messages of gloo, a store or a pipe after the death of the other process. They are not the first cause.
PEER_GONE = r"[Cc]onnection (reset|closed|refused)|([Rr]eset|[Cc]losed) by peer|Broken pipe"
_EXCEPTION = re.compile(r"([\w.]+\.)?\w*(Error|Exception|Interrupt)(:|$)")


def log_name(role: str, local_index: int) -> str:
    """Return the name of the log of a process of a role. The processes of a trainer write to its log."""
    if role in ONE_A_MACHINE:
        return f"{role}.log"
    return f"{'trainer' if role in WORKERS else role}-{local_index}.log"


def read_end(path: Path, max_bytes: int = TAIL_BYTES) -> str:
    """Return the last ``max_bytes`` of a text file, or an empty string if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
        return file.read(max_bytes).decode(errors="replace")
    return ""


def read_last_lines(path: Path) -> list[str]:
    """Return the last 20 lines of a log, with long lines cut, or an empty list if it cannot be read."""
    return [truncate_line(line) for line in read_end(path).splitlines()[-TAIL_LINES:]]


def truncate_line(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} ... (cut here)"


def uncaught_exception(lines: list[str], code: int | None) -> str | None:
    """Return the exception at the end of the log of a Python program if the exit code shows that it was not handled."""
    # Python ends with code 1. A DGL server still runs threads then, and C++ aborts it after a line of its own.
    nonblank = [line.strip() for line in lines if line.strip()]
    aborted = code == -signal.SIGABRT and nonblank[-1:] == [THREADS_LEFT]
    last_line = "".join(nonblank[-2:-1] if aborted else nonblank[-1:])
    return last_line if (aborted or code == 1) and _EXCEPTION.match(last_line) else None


class JobFiles:
    """The events and the output that the trainers of a machine append to files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # its logs can have output of an earlier job, which is not returned
        self._offsets = collections.Counter({path: path.stat().st_size for path in folder.glob("trainer-*.log")})

    def _new_lines(self, path: Path, *, rest: bool = False) -> list[bytes]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._offsets[path])
            text = file.read(READ_BYTES)
            end = text.rfind(b"\n") + 1
            if not rest and (end > 0 or len(text) < READ_BYTES):  # each part of a very long line counts as a line
                text = text[:end]
            self._offsets[path] += len(text)
            return io.BytesIO(text).readlines()
        return []

    def events(self) -> list[JsonObject]:
        """Return new events, which are lines of JSON, and skip other lines."""
        events = []
        for path in self._folder.glob("events-*.jsonl"):
            for line in self._new_lines(path):
                with contextlib.suppress(ValueError):
                    events.append(json.loads(line))
        return [event for event in events if isinstance(event, dict) and isinstance(event.get("kind"), str)]

    def output(self, *, rest: bool = False) -> Iterator[JsonObject]:
        """Yield the last new lines of each trainer and the skipped bytes before. ``rest``: also an unfinished line."""
        for path in sorted(self._folder.glob("trainer-*.log")):
            with contextlib.suppress(OSError):
                skipped = max(0, path.stat().st_size - self._offsets[path] - OUTPUT_BYTES)
                self._offsets[path] += skipped
                texts = [line.decode(errors="replace").rstrip() for line in self._new_lines(path, rest=rest)]
                if lines := [truncate_line(text.split("\r")[-1]) for text in texts]:  # the last state of a progress bar
                    yield {"trainer": int(path.stem.split("-")[1]), "lines": lines, "skipped": skipped}
