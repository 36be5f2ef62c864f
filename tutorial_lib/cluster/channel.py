"""Lines of JSON and bytes between two processes, over two file descriptors: no wait is without a limit."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

CHUNK = 1 << 20
START = b"tutorial_lib: from here on"  # what a shell prints while it starts (~/.bashrc) comes before this line
MAX_NOISE = 1 << 20
ALIVE_SECONDS = 1.0
POLL_SECONDS = 0.2


class Stopped(Exception):
    """The caller wants no more of it."""


class Channel:
    """One side of a connection.

    Args:
        read, write: file descriptors; not closed by this class.
        seconds: limit of every wait for the next byte, in either direction.
        stopped: asked several times a second during a wait; True ends it with ``Stopped``.

    Attributes:
        doing: the file that is under way, for messages.

    Every method raises TimeoutError after ``seconds``, EOFError or BrokenPipeError when the other side has ended.
    """

    def __init__(self, read: int, write: int, seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._read, self._write, self.seconds, self._stopped = read, write, seconds, stopped
        self._buffer = bytearray()
        self._sent = time.monotonic()
        self.doing = ""
        os.set_blocking(read, False)
        os.set_blocking(write, False)

    def where(self) -> str:
        """The file that is under way, as the end of a message."""
        return f" ({self.doing})" if self.doing else ""

    def mark_start(self) -> None:
        """What comes before this line is not ours."""
        self.write(b"\n" + START + b"\n")

    def find_start(self) -> None:
        """Skip what the other side's shell has printed before the mark."""
        noise = 0
        while (line := self._line()) != START:
            noise += len(line)
            if noise > MAX_NOISE:
                raise ValueError("the login shell there prints without end (~/.bashrc)")

    def send(self, message: Any) -> None:
        """One message."""
        self.write(json.dumps(message).encode() + b"\n")

    def alive(self) -> None:
        """A sign of work on something that moves no bytes; at most one a second, and never while bytes are expected."""
        if time.monotonic() - self._sent > ALIVE_SECONDS:
            self.send(None)
        if self._stopped():
            raise Stopped

    def receive(self) -> Any:
        """The next message; signs of work are skipped."""
        while (message := json.loads(self._line())) is None:
            pass
        return message

    def read(self, size: int) -> bytes:
        """At least one byte, at most ``size``."""
        while not self._buffer:
            self._fill()
        chunk = bytes(self._buffer[:size])
        del self._buffer[:size]
        return chunk

    def write(self, data: bytes) -> None:
        """All of it. The other side says nothing meanwhile, so that its end is all there can be to read."""
        rest = memoryview(data)
        while rest:
            if self._wait(writing=True):
                self._fill()
            try:
                written = os.write(self._write, rest[:CHUNK])
            except BlockingIOError:
                continue
            rest = rest[written:]
            self._sent = time.monotonic()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self) -> None:
        self._wait()
        try:
            chunk = os.read(self._read, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            raise EOFError("the connection ended")
        self._buffer += chunk

    def _wait(self, *, writing: bool = False) -> bool:
        """Until there is something to read (True), or room to write if that is asked for."""
        start, poll = time.monotonic(), select.poll()
        poll.register(self._read, select.POLLIN)
        if writing:
            poll.register(self._write, select.POLLOUT)
        while True:
            ready = dict(poll.poll(1000 * POLL_SECONDS))
            if ready:
                return self._read in ready
            if self._stopped():
                raise Stopped
            if time.monotonic() - start > self.seconds:
                raise TimeoutError(f"nothing moved for {self.seconds:g} s")
