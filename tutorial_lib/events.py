"""What a trainer tells while it runs: JSON lines, one event each, picked up by the machine's agent.

Each event has ``kind``, ``time`` (seconds since 1970) and ``rank``. Kinds: ``joined``, ``step``, ``epoch``,
``evaluation``, ``failure``, ``left``; their other fields are written where they are emitted.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class EventWriter:
    """Appends events to this trainer's file; does nothing outside a job."""

    def __init__(self) -> None:
        folder = os.environ.get("TUTORIAL_LOG_DIR")
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self._path = Path(folder) / f"events-{self.local_rank}.jsonl" if folder else None

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event; whole lines only, so that a reader never sees half of one for long."""
        if self._path is not None:
            event = {"kind": kind, "time": time.time(), "rank": self.rank, "local_rank": self.local_rank, **fields}
            with self._path.open("a") as file:
                file.write(json.dumps(event) + "\n")
