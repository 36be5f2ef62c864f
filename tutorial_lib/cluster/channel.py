"""Lines of JSON and bytes between two processes, over file descriptors: no wait is without a limit."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHUNK = 1 << 20
START = b"tutorial_lib: from here on"  # what a shell prints while it starts (~/.bashrc) comes before this line
MAX_NOISE = 1 << 20
ALIVE_SECONDS = 1.0
NOTICE_SECONDS, NOTICE_EVERY = 2.0, 10.0
POLL_SECONDS = 0.05
WRITE_BYTES = 1 << 16


class Stopped(Exception):
    """The caller wants no more of it."""


@dataclass
class Watch:
    """What a caller may know of a copy under way, and how it ends one.

    Attributes:
        say: takes a line about how far it is, when it takes longer than 2 s, and every 10 s from then on.
        stopped: asked several times a second; True ends the copy.
        what: is copied, the beginning of each line.
    """

    say: Callable[[str], None] = lambda _text: None
    stopped: Callable[[], bool] = lambda: False
    what: str = ""
    _start: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def moved(self, done: int, total: int) -> None:
        """So many bytes of so many are copied."""
        self.look(f"{done / 1e6:.1f} of {total / 1e6:.1f} MB so far")

    def look(self, text: str) -> None:
        """Say now and then how far it is; raise Stopped when the caller wants no more of it."""
        now = time.monotonic()
        if now - self._start > NOTICE_SECONDS and now - self._said > NOTICE_EVERY:
            self._said = now
            self.say(f"{self.what}: {text}")
        if self.stopped():
            raise Stopped


class Channel:
    """One side of a connection.

    Args:
        read, write: file descriptors; not closed by this class.
        seconds: limit of every wait for the next byte, in either direction.

    Attributes:
        where: the file that is under way, as the end of a message.
        waiting: what ``put`` was given and nobody has taken yet.

    ``put``, ``push`` and ``take`` never wait for the other side: a cut cable, or a process that does not read, holds
    nobody up. The other methods raise TimeoutError after ``seconds``, EOFError or BrokenPipeError when the other side
    has ended, and Stopped when the watch says so.
    """

    def __init__(self, read: int, write: int, seconds: float = 0.0, watch: Watch | None = None) -> None:
        self._read, self._write, self.seconds, self.watch = read, write, seconds, watch or Watch()
        self._buffer, self.waiting = bytearray(), bytearray()
        self._sent = time.monotonic()
        self.where = ""
        os.set_blocking(write, False)

    def put(self, message: Any) -> None:
        """Queue one message, and write what can be written now."""
        self.waiting += json.dumps(message).encode() + b"\n"
        self.push()

    def push(self, seconds: float = 0.0) -> None:
        """Write what waits, for at most so many seconds; a broken connection is noticed by who reads from it."""
        deadline = time.monotonic() + seconds
        while self.waiting:
            try:
                with memoryview(self.waiting) as view:  # without a copy of it
                    written = os.write(self._write, view[:WRITE_BYTES])
                del self.waiting[:written]
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self.waiting.clear()

    def take(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """The messages that are there, or come within so many seconds; what else a shell prints is passed over.

        Raises:
            EOFError: the other side has ended.
        """
        if b"\n" not in self._buffer and _ready(self._read, select.POLLIN, seconds):
            self._fill()
        found = []
        while b"\n" in self._buffer:
            with contextlib.suppress(ValueError):
                found.append(json.loads(self._line()))
        return [message for message in found if isinstance(message, dict)]

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

    def at_work(self) -> None:
        """A sign of work that moves no bytes, checksums; at most one a second, and never while bytes are expected."""
        if time.monotonic() - self._sent > ALIVE_SECONDS:
            self.send(None)
        self.watch.look("comparing checksums")

    def receive(self) -> Any:
        """The next message; signs of work are skipped."""
        while (message := json.loads(self._line())) is None:
            pass
        return message

    def read(self, size: int) -> bytes:
        """At least one byte, at most ``size``."""
        if not self._buffer:
            self._fill()
        return self._cut(size)

    def write(self, data: bytes) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            self._await(self._write, select.POLLOUT)
            rest = rest[os.write(self._write, rest[:CHUNK]) :]
            self._sent = time.monotonic()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        return self._cut(end + 1)[:-1]

    def _cut(self, size: int) -> bytes:
        chunk = bytes(self._buffer[:size])
        del self._buffer[:size]
        return chunk

    def _fill(self) -> None:
        self._await(self._read, select.POLLIN)
        chunk = os.read(self._read, CHUNK)
        if not chunk:
            raise EOFError("the connection ended")
        self._buffer += chunk

    def _await(self, descriptor: int, event: int) -> None:
        start = time.monotonic()
        while not _ready(descriptor, event, POLL_SECONDS):
            self.watch.look(f"waiting for the machine (at most {self.seconds:g} s without a byte)")
            if time.monotonic() - start > self.seconds:
                raise TimeoutError(f"nothing moved for {self.seconds:g} s")


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(1000 * seconds))
