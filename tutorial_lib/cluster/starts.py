"""What is still out there: the starts of a run on machines that share no folder with this one.

``delivery.json`` in the run folder::

    {"starts": [{"folder": ..., "copy_to": ..., "logs": ..., "ssh": {...}, "machines": [[name, address], ...],
                 "left": [name, ...], "superseded": false}, ...]}

Each file of a start has one owner. What carries a machine's name is that machine's: its logs, its rows of embeddings.
Everything else is the first machine's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tutorial_lib.cluster.spec import Machine
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.errors import InputError
from tutorial_lib.files import write_json

LIST = "delivery.json"


@dataclass
class Start:
    """One start of a job: where its results are, and on which machines they still are.

    Attributes:
        folder: on the machines, for the results of this start alone.
        copy_to: the folder above it that the user named.
        logs: below ``folder``, where each machine has a folder of its name; may be empty.
        ssh: arguments of ``SshCluster``.
        machines: name and address of each, the first one first.
        left: names of the machines from which not everything has come yet.
        superseded: a later start continued the run; of this one only the logs are of use.
    """

    folder: str
    copy_to: str
    logs: str
    ssh: dict[str, Any]
    machines: list[tuple[str, str]]
    left: list[str] = field(default_factory=list)
    superseded: bool = False

    def owner(self, name: str) -> str:
        """The machine that a file below ``folder`` is to come from."""
        for machine, _address in self.machines:
            in_logs = PurePosixPath(name).is_relative_to(PurePosixPath(self.logs) / machine)
            if in_logs or PurePosixPath(name).name == f"embeddings-{machine}.safetensors":
                return machine
        return self.machines[0][0]

    def in_logs(self, name: str) -> bool:
        """Whether it is a log of this start: nothing that a later start would have written anew."""
        return PurePosixPath(name).is_relative_to(PurePosixPath(self.logs))

    def cluster(self) -> SshCluster:
        """Its machines; not entered: one that cannot be reached is found when it is needed."""
        return SshCluster([Machine(*machine) for machine in self.machines], **self.ssh)


def read_starts(run: Path) -> list[Start]:
    """Those of a run folder; none for a run whose machines shared it.

    Raises:
        InputError: the list cannot be read.
    """
    try:
        return [Start(**fields) for fields in json.loads((run / LIST).read_text())["starts"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run / LIST} cannot be read: {error}") from None


def write_starts(run: Path, starts: list[Start]) -> None:
    """Those that have something left."""
    write_json(run / LIST, {"starts": [asdict(start) for start in starts if start.left]})


def command(run: Path) -> str:
    """What the user can do."""
    return f"python -m tutorial_lib fetch {shlex.quote(str(run))}"


@contextlib.contextmanager
def not_running(run: Path) -> Iterator[None]:
    """Nobody else works in this run folder while the body runs.

    Raises:
        InputError: a job does.
    """
    with contextlib.ExitStack() as stack:
        for path in (run, run / "events.jsonl"):  # a program that works in a run folder has one of them locked
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    message = f"a job is running in {run}; it brings its results home itself"
                    raise InputError(message, "Wait for its end, or stop it.") from None
                except OSError:  # a file system without locks
                    pass
        yield
