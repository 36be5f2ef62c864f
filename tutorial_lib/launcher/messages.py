"""Messages between the coordinator and the agents. Each is one line of JSON with the name of its class as ``type``.

All times are in seconds since the epoch.
"""

from dataclasses import asdict, dataclass
from typing import Any

from tutorial_lib.launcher.findings import Finding
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.watch import Stack


class Message:
    """Base class of all messages."""


@dataclass(frozen=True)
class Prepare(Message):
    """Check the machine for a job. ``index`` is the number of the machine."""

    spec: JobSpec
    index: int


@dataclass(frozen=True)
class StartRole(Message):
    """Start the processes of a role."""

    role: str


@dataclass(frozen=True)
class Ping(Message):
    """Answer with a ``Pong``. ``sent`` is the time of the coordinator."""

    sent: float


@dataclass(frozen=True)
class DumpStacks(Message):
    """Collect the Python stacks of all processes and answer with ``Stacks``."""


@dataclass(frozen=True)
class SaveNow(Message):
    """Ask the ranks to save a checkpoint in the middle of the epoch and to stop."""


@dataclass(frozen=True)
class Stop(Message):
    """End all processes of the machine."""


@dataclass(frozen=True)
class Hello(Message):
    """The first message of an agent: a checksum of its tutorial_lib, its home, and IPv4 addresses by interface."""

    package: str
    home: str
    addresses: dict[str, list[str]]
    time: float


@dataclass(frozen=True)
class Checked(Message):
    """The answer to ``Prepare``: the results of all checks, and versions by package."""

    findings: list[Finding]
    versions: dict[str, str]


@dataclass(frozen=True)
class Started(Message):
    """Process ``index`` of a role has been started or forked."""

    role: str
    index: int
    time: float


@dataclass(frozen=True)
class Serving(Message):
    """All processes of a role listen on this machine, see ``Role.listens``."""

    role: str
    time: float


@dataclass(frozen=True)
class Exited(Message):
    """A process has ended, and all its reports have been sent. ``-code`` is the number of a signal."""

    role: str
    index: int
    code: int
    time: float


@dataclass(frozen=True)
class Failed(Message):
    """A process has failed, or the machine cannot continue. ``note`` replaces the exit code as the cause."""

    role: str
    index: int
    code: int
    note: str
    out_of_memory: bool
    tail: list[str]


@dataclass(frozen=True)
class Heartbeat(Message):
    """Sent every two seconds: processor seconds and bytes of logs since the last one, and all bytes sent so far."""

    cpu: float
    wrote: int
    bytes_sent: int
    time: float


@dataclass(frozen=True)
class Pong(Message):
    """The answer to a ``Ping`` with the time of the machine."""

    sent: float
    time: float


@dataclass(frozen=True)
class Output(Message):
    """Lines that rank ``trainer`` of the machine printed, after ``skipped`` lines that only the log contains."""

    trainer: int
    lines: list[str]
    skipped: int


@dataclass(frozen=True)
class Stacks(Message):
    """The Python stacks of the processes of the machine."""

    stacks: list[Stack]


@dataclass(frozen=True)
class Report(Message):
    """An event that a rank wrote. The launcher forwards events and reads only their kind."""

    event: dict[str, Any]


@dataclass(frozen=True)
class Done(Message):
    """The last message of an agent: bytes sent, and the peak resident memory of the largest process of each role."""

    bytes_sent: int
    peak_rss: dict[str, int]
    time: float


KINDS: dict[str, Any] = {kind.__name__: kind for kind in Message.__subclasses__()}
NESTED = {"stacks": Stack, "findings": Finding}  # fields that contain records


def encode(message: Message) -> dict[str, Any]:
    """Return a dictionary of JSON types."""
    fields: Any = message
    return {"type": type(message).__name__, **asdict(fields)}


def decode(record: dict[str, Any]) -> Message | None:
    """Return the message of a line, or None if the line has another origin, such as a login shell."""
    if (kind := KINDS.get(record.pop("type", ""))) is None:
        return None
    for name in NESTED.keys() & record.keys():
        record[name] = [NESTED[name](**fields) for fields in record[name]]
    if kind is Prepare:
        record["spec"] = JobSpec.from_dict(record["spec"])
    return kind(**record)
