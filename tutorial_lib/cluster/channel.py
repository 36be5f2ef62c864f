"""Lines of JSON and bytes between two processes, over file descriptors: no wait is without a limit."""

from __future__ import annotations

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
MOST_WAITING = 8 << 20
# Events without which the coordinator could not tell how the job went. Of others some may be missing.
KEPT = {
    *("joined", "split", "placed", "epoch", "checkpoint", "resumed", "kept"),
    *("evaluating", "evaluation", "failure", "left"),
}


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

    Every method raises TimeoutError after ``seconds``, EOFError or BrokenPipeError when the other side has ended, and
    Stopped when the watch says so.
    """

    def __init__(self, read: int, write: int, seconds: float, watch: Watch | None = None) -> None:
        self._read, self._write, self.seconds, self.watch = read, write, seconds, watch or Watch()
        self._buffer = bytearray()
        self._sent = time.monotonic()
        self.where = ""
        os.set_blocking(write, False)

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
        return self._take(size)

    def write(self, data: bytes) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            self._wait(self._write, select.POLLOUT)
            rest = rest[os.write(self._write, rest[:CHUNK]) :]
            self._sent = time.monotonic()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        return self._take(end + 1)[:-1]

    def _take(self, size: int) -> bytes:
        chunk = bytes(self._buffer[:size])
        del self._buffer[:size]
        return chunk

    def _fill(self) -> None:
        self._wait(self._read, select.POLLIN)
        chunk = os.read(self._read, CHUNK)
        if not chunk:
            raise EOFError("the connection ended")
        self._buffer += chunk

    def _wait(self, descriptor: int, event: int) -> None:
        start, poll = time.monotonic(), select.poll()
        poll.register(descriptor, event)
        while not poll.poll(1000 * POLL_SECONDS):
            self.watch.look(f"waiting for the machine (at most {self.seconds:g} s without a byte)")
            if time.monotonic() - start > self.seconds:
                raise TimeoutError(f"nothing moved for {self.seconds:g} s")


class Outbox:
    """Lines to another process, without ever waiting for it: a cut cable, or one that does not read, holds nobody up.

    While more than 8 MB wait, signs of life and the events of single steps are dropped and counted; the count is
    told as soon as there is room again (``dropped``).

    Args:
        descriptor: the open file to write to.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self.waiting = bytearray()
        self._dropped = 0

    def put(self, message: dict[str, Any]) -> None:
        """Queue one message and write what can be written now; a broken connection is noticed by who reads from it."""
        os.set_blocking(self._descriptor, False)
        full = len(self.waiting) > MOST_WAITING
        if full and _may_be_dropped(message):
            self._dropped += 1
        else:
            if self._dropped and not full:
                self._queue({"type": "dropped", "count": self._dropped})
                self._dropped = 0
            self._queue(message)
        self.flush()

    def _queue(self, message: dict[str, Any]) -> None:
        self.waiting += json.dumps(message).encode() + b"\n"

    def flush(self, seconds: float = 0.0) -> None:
        """Write what waits, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        while self.waiting:
            try:
                written = os.write(self._descriptor, self.waiting[:WRITE_BYTES])
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL_SECONDS)
            except OSError:
                self.waiting.clear()
            else:
                del self.waiting[:written]  # at the front of a bytearray this copies nothing


def _may_be_dropped(message: dict[str, Any]) -> bool:
    kind = message.get("type")
    return kind == "alive" or (kind == "event" and message["event"]["kind"] not in KEPT)


outbox = Outbox()
send = outbox.put
