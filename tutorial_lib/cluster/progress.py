"""Does a job still move? An event of a trainer, a line in a log, computing or traffic anywhere says yes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Idle servers, trainers and samplers were measured at 0.2 % of a core each.
BUSY_SECONDS = 0.1  # of computing on one machine between two messages of its agent, 2 s apart
GAP_SECONDS = 5.0
BUSY_BYTES = 20_000  # sent by one machine between two messages


@dataclass
class Progress:
    """When the job last moved, and when each agent was last heard.

    A rank that spins in an endless loop counts as moving: only ``--timeout`` ends that.
    """

    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.moved = self._ticked = self.clock()
        self.heard: dict[int, float] = {}

    def tick(self) -> None:
        """Call it often. After a gap it was we who did not look (Ctrl-Z), not they who were silent."""
        now = self.clock()
        gap = now - self._ticked
        if gap > GAP_SECONDS:
            self.moved += gap
            self.heard = {index: heard + gap for index, heard in self.heard.items()}
        self._ticked = now

    def note(self, index: int, message: dict[str, Any]) -> None:
        """Take any message of agent ``index``."""
        now = self.clock()
        self.heard[index] = now
        if message["type"] != "alive" or (
            message["cpu"] > BUSY_SECONDS or message["wrote"] > 0 or message["sent"] > BUSY_BYTES
        ):
            self.moved = now

    def still_for(self) -> float:
        """Seconds since anything moved."""
        return self.clock() - self.moved

    def silent_agent(self, limit: float) -> int | None:
        """An agent that has not been heard for longer than ``limit`` seconds."""
        now = self.clock()
        return next((index for index, heard in self.heard.items() if now - heard > limit), None)
