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
LAST = 1 << 14  # bytes that are still shown when more than a piece is waiting
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

        Args:
            rest: the trainers have ended: also a last line without an end.
        """
        for path in sorted(self._folder.glob("trainer-*.log")):
            if found := _LOG.fullmatch(path.name):
                file = self._files.setdefault(path, _File(0))
                lines = self._lines(path, file, rest)
                if lines or (rest and file.skipped):
                    yield {"trainer": int(found[1]), "lines": lines, "skipped": file.skipped}
                    file.skipped = 0

    def _lines(self, path: Path, file: _File, rest: bool) -> list[str]:
        data = b""
        with contextlib.suppress(OSError), path.open("rb") as stream:
            waiting = os.fstat(stream.fileno()).st_size - file.offset
            stream.seek(file.offset)
            while waiting > PIECE:  # far behind: only count, in bounded memory
                piece = stream.read(min(PIECE, waiting - LAST))
                file.skipped += piece.count(b"\n")
                file.offset += len(piece)
                waiting -= len(piece)
            data = stream.read(PIECE)
        end = len(data) if rest and data else data.rfind(b"\n") + 1
        if not end and len(data) == PIECE:  # one line of this length; the log has it
            end = len(data)
        file.offset += end
        lines = data[:end].removesuffix(b"\n").split(b"\n") if end else []
        now = time.monotonic()
        file.room = min(LINES_PER_SECOND, file.room + LINES_PER_SECOND * (now - file.filled))
        file.filled = now
        if len(lines) > file.room:
            keep = int(file.room)
            file.skipped += len(lines) - keep
            lines = lines[len(lines) - keep :]
        file.room -= len(lines)
        return [_shown(line) for line in lines]


def _shown(line: bytes) -> str:
    """As a terminal would leave it: of a progress bar's many states in one line, the last."""
    states = [state for state in line.decode(errors="replace").split("\r") if state.strip()]
    return shortened(states[-1].rstrip() if states else "")
