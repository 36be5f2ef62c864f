"""From an agent to the coordinator: JSON lines on standard output."""

from __future__ import annotations

import json
import os
import time
from typing import Any

POLL_SECONDS = 0.05
WRITE_BYTES = 1 << 16
MOST_WAITING = 8 << 20
# Events without which the coordinator could not tell how the job went. Of others some may be missing.
KEPT = {
    *("joined", "split", "placed", "epoch", "checkpoint", "resumed", "kept"),
    *("evaluating", "evaluation", "failure", "left"),
}


class Outbox:
    """Standard output to the coordinator, without ever waiting for it: a cut cable must not hold up the agent.

    While more than 8 MB wait, signs of life and the events of single steps are dropped and counted; the count is
    told as soon as there is room again (``dropped``).

    Args:
        descriptor: the open file to write to.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._dropped = 0

    def put(self, message: dict[str, Any]) -> None:
        """Queue one message and write what can be written now; a broken connection is noticed on standard input."""
        os.set_blocking(self._descriptor, False)
        full = len(self._waiting) > MOST_WAITING
        if full and _may_be_dropped(message):
            self._dropped += 1
        else:
            if self._dropped and not full:
                self._queue({"type": "dropped", "count": self._dropped})
                self._dropped = 0
            self._queue(message)
        self.flush()

    def _queue(self, message: dict[str, Any]) -> None:
        self._waiting += json.dumps(message).encode() + b"\n"

    def flush(self, seconds: float = 0.0) -> None:
        """Write what waits, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        while self._waiting:
            try:
                written = os.write(self._descriptor, self._waiting[:WRITE_BYTES])
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self._waiting.clear()
            else:
                del self._waiting[:written]  # at the front of a bytearray this copies nothing


def _may_be_dropped(message: dict[str, Any]) -> bool:
    return message["type"] == "alive" or (message["type"] == "event" and message["event"]["kind"] not in KEPT)


outbox = Outbox()
send = outbox.put
