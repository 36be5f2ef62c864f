"""Backends, which start processes on this computer, emulated machines, machines over ssh, and nodes of Slurm."""

import contextlib
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Hello
from tutorial_lib.launcher.network import listening_ports


@dataclass(frozen=True)
class Traits:
    """Properties of a backend that other modules take into account."""

    one_computer: bool = True  # the machines share the CPUs and the memory of this computer
    silence_seconds: float | None = None  # time without messages after which an agent stops, for ssh and srun
    label: str = "{0.name}"  # name of a machine in messages before the job
    reads_ip_config: bool = False  # the machines are those of the user's ip_config.txt
    copy_to: str | None = None  # folder on the machines for copies and results, or None if they share our folders
    killed_hint: str = ""  # question about an agent that was killed by SIGKILL
    ssh_options: JsonObject | None = None  # with which a later command reaches the machines, if one can


class Backend(contextlib.AbstractContextManager["Backend"], Protocol):
    """Machines, and a way to start a process on each."""

    traits: Traits = Traits()
    machines: list[Machine]
    master_port: int = 29500  # where the ranks meet, on the first machine. This is the default of torchrun

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine in a new session, because Ctrl-C in the terminal is for the coordinator."""
        raise NotImplementedError

    def resolve(self, hellos: Sequence[Hello]) -> None:
        """Complete ``machines`` and ``traits`` with the first messages of the agents, one for each machine."""

    def remedy(self, machine: Machine, last_line: str) -> str:  # noqa: ARG002
        """Return advice for an agent that did not start. ``last_line`` is its output, empty after a timeout."""
        return ""

    def rsync_shell(self, machine: Machine) -> list[str]:  # noqa: ARG002
        """Return the remote shell for ``rsync -e``, or an empty list if the machines share our folders."""
        return []

    def __exit__(self, *_exc: object) -> None:
        """Stop the machines. ``Agents`` has already ended the processes that it started."""


def find_first_free_port(count: int) -> int:
    """Return the first of ``count`` consecutive ports on which no process of this computer listens."""
    first_port = 20_000 + secrets.randbelow(10_000)  # the kernel gives clients larger ones
    while not listening_ports().isdisjoint(range(first_port, first_port + count)):
        first_port += count
    return first_port


class LocalBackend(Backend):
    """The backend of ``--machines 1``: this computer on the loopback interface, with ``servers`` DGL servers."""

    def __init__(self, servers: int = 1) -> None:
        self.servers = servers
        self.machines = [Machine(name="machine-0", address="127.0.0.1")]

    def __enter__(self) -> "LocalBackend":
        first_port = find_first_free_port(self.servers + 1)  # shortly before they are used
        self.machines = [replace(self.machines[0], port=first_port)]
        self.master_port = first_port + self.servers
        return self

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:  # noqa: ARG002
        return subprocess.Popen([str(arg) for arg in argv], start_new_session=True, **kwargs)


def wait_or_kill(process: subprocess.Popen, seconds: float) -> None:
    """Wait for a process to end, and then kill it. A process that hangs in the kernel is abandoned after 5 s."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5.0)
