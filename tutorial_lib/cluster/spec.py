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
        address: IPv4 address that the other machines use. DGL takes no host names.
        port: first port of its DGL servers. Server k listens on ``port + k``.
        interface: network interface that carries ``address``, or None if the agent shall find it.
        cpus: CPU numbers that its processes may use. An empty tuple means all CPUs.
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
    """Machines, and a way to start a process on each. Leaving the context ends all processes that it started."""

    traits: Traits
    machines: list[Machine]
    master_port: int  # where the trainers' process group meets, on the first machine

    @property
    def copy_to(self) -> str | None:
        """Folder on the machines for copies and results, or None if the machines share the folders of this computer.

        The cluster must have been entered.
        """
        ...

    @property
    def reach(self) -> dict[str, Any] | None:
        """Options with which a later command reaches the machines, see ``remote_files.Delivery``, or None."""
        ...

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Return the remote shell for ``rsync -e`` and its open files, or None if the machines share our folders."""
        ...

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine. The arguments are those of ``subprocess.Popen``."""
        ...

    def explain_end(self) -> str | None:
        """Return why the machines have ended during a job, or None if they have not or the reason is unknown."""
        ...


def wait_or_kill(process: subprocess.Popen, seconds: float) -> None:
    """Wait for a process to end, and then kill it. A process that hangs in the kernel is abandoned after 5 s."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=KILLED_SECONDS)


class RemoteCluster(ABC):
    """Computers that the client programs ssh or srun reach. Each command has a client, which ends with the context."""

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
        """Return the command of the client, which runs ``line`` in a shell of the machine."""

    @abstractmethod
    def _remedy(self, machine: Machine, said: str) -> str:
        """Return a remedy for the message of the client, which is empty after a timeout."""

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine. The arguments are those of ``Popen``. ``env`` has additional variables only.

        If the working directory does not exist there, the command fails with a message. The default is ``/``, because
        Python imports from the folder in which it starts, and a home may contain a ``random.py``.
        """
        words = [self.python if str(word) == sys.executable else str(word) for word in argv]
        cwd, env = kwargs.pop("cwd", None), kwargs.pop("env", None) or {}
        changes = [f"{name}={value}" for name, value in env.items() if os.environ.get(name) != value]
        command = shlex.join(["exec", *(["env", *changes] if changes else []), *words])
        client = self._client(machine, f"cd {shlex.quote(str(cwd or '/'))} && {command}")
        kwargs.setdefault("stdin", subprocess.DEVNULL)  # the client would read the user's terminal
        # The coordinator handles Ctrl-C in the terminal. The signal must not end the connections.
        process = subprocess.Popen(client, start_new_session=True, **kwargs)
        self._started.append(process)
        return process

    def explain_end(self) -> str | None:
        """Return None, because the client programs report nothing about the end of a machine."""
        return None

    def _ask(self, argv: Sequence[str], places: Sequence[str], seconds: float) -> list[str]:
        """Run a program on all machines at the same time and return its output. Messages use the names ``places``.

        Raises:
            InputError: the message of the client, or a timeout.
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
        """End the clients that still run. The processes on the machines end because they lose their connection."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            wait_or_kill(process, KILLED_SECONDS)
        self._started = []


def write_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the file from which DGL reads the addresses of the servers, one line ``address port`` for each machine."""
    path.write_text("".join(f"{m.address} {m.port}\n" for m in machines))


def read_ip_config(path: Path) -> list[Machine]:
    """Read an ``ip_config.txt`` with one line ``address [port]`` for each machine.

    Raises:
        InputError: the file is empty, or a line has a host name, an IPv6 address, a port out of range, or an address
            that occurs twice. DGL would fail later. The message contains the line number.
    """
    try:
        with path.open() as file:  # it may be a pipe without an end
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
