"""Lines of JSON between two processes over file descriptors. Neither side ever waits for the other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from typing import Any

CHUNK = 1 << 20
POLL_SECONDS = 0.05
WRITE_BYTES = 1 << 16


class Channel:
    """One side of a connection. A cut cable, or a process that does not read, holds nobody up.

    Args:
        read, write: file descriptors. The channel does not close them.

    Attributes:
        waiting: bytes of messages that have not been written yet.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer, self.waiting = bytearray(), bytearray()
        os.set_blocking(write, False)

    def put(self, message: Any) -> None:
        """Queue one message, and write as much as possible now."""
        self.waiting += json.dumps(message).encode() + b"\n"
        self.push()

    def push(self, seconds: float = 0.0) -> None:
        """Write waiting bytes for at most this time. Only the reader of a broken connection notices its end."""
        deadline = time.monotonic() + seconds
        while self.waiting:
            try:
                with memoryview(self.waiting) as view:  # without a copy
                    written = os.write(self._write, view[:WRITE_BYTES])
                del self.waiting[:written]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self.waiting.clear()

    def take(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Return the messages that arrive within this time. Other text, such as that of a login shell, is skipped.

        Raises:
            EOFError: the other side has ended.
        """
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if b"\n" not in self._buffer and poll.poll(1000 * seconds):
            chunk = os.read(self._read, CHUNK)
            if not chunk:
                raise EOFError("the connection ended")
            self._buffer += chunk
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [message for message in found if isinstance(message, dict)]
