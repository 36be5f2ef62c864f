"""Messages between the coordinator and the agents, as lines of JSON. Neither side ever waits for the other.

The coordinator sends Prepare, StartRole for each role, and Command at any time. An agent sends Hello, then Checked in
response to Prepare, Report, Heartbeat, Failed and Stacks during the job, and finally Done.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import dataclass_transform

from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.findings import Finding
from tutorial_lib.launcher.jobspec import JobSpec, Machine, Role
from tutorial_lib.launcher.watch import ProcessStack

CHUNK = 1 << 20
POLL_SECONDS = 0.05
CLASS = "$class"  # key of the name of a dataclass, which is sent as a dictionary of its fields
RECORDS: dict[str, Callable[..., object]] = {t.__name__: t for t in (Finding, JobSpec, Machine, Role, ProcessStack)}


@dataclass_transform(frozen_default=True)
class Message:
    def __init_subclass__(cls) -> None:
        RECORDS[cls.__name__] = dataclass(frozen=True)(cls)


class Prepare(Message):
    spec: JobSpec
    machine_index: int


class StartRole(Message):
    role: str


class Command(Message):
    name: Literal["ping", "save", "stacks", "stop"]  # save: save a checkpoint and end, see ``watch.SAVE_REQUEST_FILE``


class Hello(Message):
    package: str  # checksum of tutorial_lib on the machine
    home: str
    addresses: dict[str, list[str]]  # IPv4 addresses by interface


class Checked(Message):
    findings: list[Finding]
    versions: dict[str, str]
    time: float  # in seconds since the epoch


class Report(Message):
    event: JsonObject  # event of the agent or a rank, see ``coordinator``


class Heartbeat(Message):
    busy: bool  # whether the job did something on this machine since the last heartbeat
    bytes_sent: int
    time: float


class Failed(Message):
    """A process has failed, or the machine cannot continue (role "agent")."""

    role: str
    local_index: int
    cause: str
    tail: list[str]  # last lines of its log


class Stacks(Message):
    stacks: list[ProcessStack]


class Done(Message):
    peak_rss: dict[str, int]  # bytes of the largest process of each role


def _to_record(fields: JsonObject) -> object:
    return RECORDS[fields.pop(CLASS)](**fields) if CLASS in fields else fields


class Channel:
    """One side of a connection over two file descriptors. ``waiting`` are the bytes that have not been written yet."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = bytearray()
        self.waiting = bytearray()
        os.set_blocking(write, False)

    def put(self, message: object) -> None:
        """Queue one message, and write as much as possible now."""
        text = json.dumps(message, default=lambda record: {CLASS: type(record).__name__, **vars(record)})
        self.waiting += text.encode() + b"\n"
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

    def receive(self, seconds: float = 0.0) -> list[Any]:
        """Return the messages that arrive within this time, or raise an EOFError if the other side has ended."""
        messages = []
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if poll.poll(1000 * seconds):
            if not (chunk := os.read(self._read, CHUNK)):
                raise EOFError("the connection ended")
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # other text, such as that of a login shell
                    messages.append(json.loads(line, object_hook=_to_record))
        return messages
