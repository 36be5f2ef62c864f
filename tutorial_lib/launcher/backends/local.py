"""The backend of ``--machines 1``: this computer as one machine on the loopback interface, without namespaces."""

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutorial_lib.launcher.backends import Backend, Traits
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.network import listening_ports


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive ports on which no process of this computer listens."""
    taken, first = listening_ports(), 20_000 + secrets.randbelow(10_000)  # the kernel gives clients larger ones
    while not taken.isdisjoint(range(first, first + count)):
        first += count
    return first


class LocalBackend(Backend):
    """This computer as the only machine. ``servers`` is the number of DGL servers, which listen on successive ports."""

    def __init__(self, servers: int = 1) -> None:
        self.servers = servers
        self.traits = Traits(shares_computer=True, private_shm=False)
        self.machines = [Machine(name="machine-0", address="127.0.0.1", interface="lo")]
        self.master_port = 0  # ports are chosen on entering, shortly before they are used

    def __enter__(self) -> "LocalBackend":
        first = free_ports(self.servers + 1)
        self.machines, self.master_port = [replace(self.machines[0], port=first)], first + self.servers
        return self

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:  # noqa: ARG002
        """Start a command. The arguments are those of ``subprocess.Popen``."""
        return subprocess.Popen([str(arg) for arg in argv], start_new_session=True, **kwargs)
