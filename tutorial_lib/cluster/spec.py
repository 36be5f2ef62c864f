"""Machines, clusters and DGL's ``ip_config.txt``."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tutorial_lib.errors import InputError, WaitedTooLong, attempts

SSH_FAILED = 255  # exit code of the ssh client for its own failures
KILLED_SECONDS = 5.0
LARGEST_LIST = 1 << 20  # characters
DEFAULT_PORT = 30050  # the port that DGL's own launch tool uses for server 0


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster.

    Attributes:
        name: name in log folders and messages, such as machine-0. For Slurm, the name of the node.
        address: IPv4 address that the other machines reach it at (DGL takes no host names here).
        port: first port of its DGL servers; server k listens on ``port + k``.
        interface: network interface that carries ``address``; None lets the agent find it.
        cpus: CPU numbers its processes may use; empty means all of them.
    """

    name: str
    address: str
    port: int = DEFAULT_PORT
    interface: str | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traits:
    """Properties of a backend that the launcher takes into account.

    Attributes:
        shares_computer: the machines share the processors and the memory of this computer.
        private_shm: /dev/shm of a machine disappears with the machine after the job.
        silence_seconds: an agent stops if it hears nothing from the coordinator for this time. None if the connection
            is a pipe on this computer, which reports the end of the coordinator at once.
    """

    shares_computer: bool
    private_shm: bool
    silence_seconds: float | None = None


class Cluster(contextlib.AbstractContextManager["Cluster"], Protocol):
    """Machines, and one way to start a process on each: on leaving the context, everything that it started is gone."""

    traits: Traits
    machines: list[Machine]
    master_port: int  # where the trainers' process group meets, on the first machine

    @property
    def copy_to(self) -> str | None:
        """Folder on the machines that gets copies and gives back results; None: they have the folders of this computer.

        Of a cluster that has been entered.
        """
        ...

    @property
    def reach(self) -> dict[str, Any] | None:
        """What a later command needs to reach the machines, see ``remote_files.Delivery``; None: it cannot."""
        ...

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Remote shell for ``rsync -e``, and the open files that it needs; None if machines have our folders."""
        ...

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine; the arguments are those of ``subprocess.Popen``."""
        ...

    def explain_end(self) -> str | None:
        """Return why the machines have ended during a job, or None if they have not or the reason is unknown."""
        ...


def wait_or_kill(process: subprocess.Popen, seconds: float) -> None:
    """Wait so long for a process to end, then kill it. One that hangs in the kernel is left behind, after 5 s more."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=KILLED_SECONDS)


class RemoteCluster(ABC):
    """Computers that a client program here reaches, ssh or srun: one client for each command, all gone on leaving."""

    traits = Traits(shares_computer=False, private_shm=False, silence_seconds=30.0)  # pings come every 5 s
    master_port = 29500
    copy_to: str | None = None
    reach: dict[str, Any] | None = None

    def __init__(self, machines: Sequence[Machine], python: str = sys.executable) -> None:
        self.machines, self.python = list(machines), python
        self._started: list[subprocess.Popen] = []

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:  # noqa: ARG002
        """Part of being a ``Cluster``."""
        return None

    @abstractmethod
    def _client(self, machine: Machine, line: str) -> list[str]:
        """The client's command: a shell of the machine runs ``line``."""

    @abstractmethod
    def _remedy(self, machine: Machine, said: str) -> str:
        """What to do, from what the client has said; empty: nothing in time."""

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine; the arguments are those of ``subprocess.Popen``, of ``env`` only additions.

        The command is not started in the working directory if that does not exist there; it says so and ends. Without
        one it starts in ``/``: Python imports from where it starts, and in a home there may be a ``random.py``.
        """
        words = [self.python if str(word) == sys.executable else str(word) for word in argv]
        cwd, env = kwargs.pop("cwd", None), kwargs.pop("env", None) or {}
        changes = [f"{name}={value}" for name, value in env.items() if os.environ.get(name) != value]
        command = shlex.join(["exec", *(["env", *changes] if changes else []), *words])
        client = self._client(machine, f"cd {shlex.quote(str(cwd or '/'))} && {command}")
        kwargs.setdefault("stdin", subprocess.DEVNULL)  # the client would read the user's terminal
        # Ctrl-C in the terminal is for the coordinator to handle; it must not take the connections away.
        process = subprocess.Popen(client, start_new_session=True, **kwargs)
        self._started.append(process)
        return process

    def explain_end(self) -> str | None:
        """Return None, because the client programs report nothing about the end of a machine."""
        return None

    def _ask(self, argv: Sequence[str], places: Sequence[str], seconds: float) -> list[str]:
        """What a program prints on each machine, asked all at once; ``places`` is what messages call the machines.

        Raises:
            InputError: what the client says instead of an answer, or that none came in time.
        """
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        answers, output, errors = [], b"", b""
        try:
            asked = [self.popen(machine, argv, **pipes) for machine in self.machines]
            for machine, place, process in zip(self.machines, places, asked, strict=True):
                try:
                    for left in attempts(f"{place} to answer", seconds, pause=0):
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            output, errors = process.communicate(timeout=min(left, 0.5))
                            break
                except WaitedTooLong:
                    raise InputError(f"{place}: no answer within {seconds:g} s", self._remedy(machine, "")) from None
                if process.returncode != 0:
                    said = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
                    raise InputError(f"{place}: {said.splitlines()[-1]}", self._remedy(machine, said))
                answers.append(output.decode(errors="replace"))
        finally:
            self.__exit__()
        return answers

    def __exit__(self, *_exc: object) -> None:
        """End what still runs here; the other side notices that its connection is gone and ends by itself."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            wait_or_kill(process, KILLED_SECONDS)
        self._started = []


def write_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the file that tells DGL where the servers are: one line ``address port`` a machine."""
    path.write_text("".join(f"{m.address} {m.port}\n" for m in machines))


def read_ip_config(path: Path) -> list[Machine]:
    """Read an ``ip_config.txt``: one ``address [port]`` a line, machine k on line k.

    Raises:
        InputError: with the line number, for anything DGL would only trip over later: a host name or
            an IPv6 address, a port out of range, the same machine twice, an empty file.
    """
    try:
        with path.open() as file:  # it may be a pipe, and need not have an end
            lines = file.read(LARGEST_LIST).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise InputError(f"cannot read {path}: {why}") from None
    machines: list[Machine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where, (address, *more) = f"{path}, line {number}", line.split()
        try:
            address = str(ipaddress.IPv4Address(address))
        except ValueError:
            remedy = "DGL takes IPv4 addresses only; look one up with: getent ahostsv4 NAME"
            raise InputError(f"{where}: {address!r} is not an IPv4 address", remedy) from None
        if len(more) > 1:
            raise InputError(f"{where}: expected 'address' or 'address port', got {line.strip()!r}")
        if more and not (more[0].isdigit() and 1024 <= int(more[0]) <= 65535):
            raise InputError(f"{where}: port {more[0]!r} is not a number from 1024 to 65535")
        if any(m.address == address for m in machines):
            raise InputError(f"{where}: {address} is listed twice; each machine serves exactly one part")
        machines.append(Machine(f"machine-{len(machines)}", address, int(more[0]) if more else DEFAULT_PORT))
    if not machines:
        raise InputError(f"{path}: no machine in it")
    return machines
