"""What trainers print, on its way to the screen: whole lines, soon, and never more than a screen can use."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.logs import shortened

LINES_PER_SECOND = 200  # of one trainer; what is more is counted and stays in the log
PIECE = 1 << 16
END = 1 << 14  # bytes that are still shown of each end when more than a piece is waiting
_LOG = re.compile(r"trainer-(\d+)\.log")


@dataclass
class _File:
    offset: int
    skipped: int = 0
    room: float = LINES_PER_SECOND
    filled: float = 0.0


class OutputFiles:
    """The logs of this machine's trainers, and how far each has been shown.

    Args:
        folder: the machine's log folder. What an earlier job has left in the logs is not shown.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {path: _File(path.stat().st_size) for path in folder.glob("trainer-*.log")}

    def new(self, *, rest: bool = False) -> Iterator[dict[str, Any]]:
        """``trainer`` (its number), ``lines`` and ``skipped`` (how many before them are in the log only), where any.

        Of a burst the first lines and the last: in two of these.

        Args:
            rest: the trainers have ended: also a last line without an end.
        """
        for path in sorted(self._folder.glob("trainer-*.log")):
            if not (found := _LOG.fullmatch(path.name)):
                continue
            file = self._files.setdefault(path, _File(0))
            first, between, last = _within(file, *self._waiting(path, file, rest))
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
                while waiting > END:
                    piece = stream.read(min(PIECE, waiting - END))
                    between += piece.count(b"\n")
                    waiting -= len(piece)
                if between and not piece.endswith(b"\n"):  # in the middle of a line
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


def _within(file: _File, first: list[bytes], between: int, last: list[bytes]) -> tuple[list[bytes], int, list[bytes]]:
    """As many of the first and of the last as may be shown now, and how many are then between them."""
    now = time.monotonic()
    file.room = min(LINES_PER_SECOND, file.room + LINES_PER_SECOND * (now - file.filled))
    file.filled = now
    room = int(file.room)
    if len(first) + len(last) > room:
        if not between:
            first, last = last[: room // 2], last[room // 2 :]
        between += max(0, len(first) - room // 2)
        first = first[: room // 2]
        surplus = max(0, len(last) - (room - len(first)))
        between, last = between + surplus, last[surplus:]
    file.room -= len(first) + len(last)
    return first, between, last


def _shown(line: bytes) -> str:
    """As a terminal would leave it: of a progress bar's many states in one line, the last."""
    states = [state for state in line.decode(errors="replace").split("\r") if state.strip()]
    return shortened(states[-1].rstrip() if states else "")
