"""Lines of JSON between two processes over file descriptors. Neither side ever waits for the other."""

import contextlib
import json
import os
import select
import time
from typing import Any

CHUNK = 1 << 20
POLL_SECONDS = 0.05


class Channel:
    """One side of a connection over two file descriptors. ``waiting`` are the bytes that have not been written yet.

    A cut cable, or a process that does not read, holds nobody up.
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
                del self.waiting[: os.write(self._write, self.waiting)]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self.waiting.clear()

    def take(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Return the messages that arrive within this time. Other text, such as that of a login shell, is skipped.

        An EOFError is raised if the other side has ended.
        """
        poll, found = select.poll(), []
        poll.register(self._read, select.POLLIN)
        if poll.poll(1000 * seconds):
            if not (chunk := os.read(self._read, CHUNK)):
                raise EOFError("the connection ended")
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [message for message in found if isinstance(message, dict)]
