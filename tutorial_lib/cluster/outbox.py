"""From an agent to the coordinator: JSON lines on standard output, and the events that trainers write to files."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05


class Outbox:
    """Standard output to the coordinator, without ever waiting for it: a cut cable must not hold up the agent."""

    def __init__(self) -> None:
        self._waiting = b""

    def put(self, message: dict[str, Any]) -> None:
        """Queue one message and write what can be written now; a broken connection is noticed on standard input."""
        os.set_blocking(1, False)
        self._waiting += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self, seconds: float = 0.0) -> None:
        """Write what waits, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        while self._waiting:
            try:
                self._waiting = self._waiting[os.write(1, self._waiting) :]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self._waiting = b""


outbox = Outbox()
send = outbox.put


class EventFiles:
    """The files to which this machine's trainers append JSON lines, and how far each has been read.

    Args:
        folder: the machine's log folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """Events since the last call; what is not an event is passed over."""
        for path in self._folder.glob("events-*.jsonl"):
            with path.open("rb") as stream:
                stream.seek(self._offsets.get(path, 0))
                data = stream.read()
            end = data.rfind(b"\n") + 1  # a line may be half written
            self._offsets[path] = self._offsets.get(path, 0) + end
            for line in data[:end].splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("kind"), str):
                        yield event
