"""The backend of ``--machines 1``: this computer as one machine on the loopback interface, without namespaces."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import Traits
from tutorial_lib.launcher.checks import segment_findings
from tutorial_lib.launcher.findings import FAIL
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.network import listening_ports


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive ports on which no process of this computer listens."""
    taken, first = listening_ports(), 20_000 + secrets.randbelow(10_000)  # the kernel gives clients larger ones
    while not taken.isdisjoint(range(first, first + count)):
        first += count
    return first


class LocalBackend:
    """This computer as a cluster of one machine.

    Args:
        servers: number of DGL servers, which listen on consecutive ports.

    Raises:
        InputError: on entering, if another job uses /dev/shm of this computer.
    """

    traits = Traits(shares_computer=True, private_shm=False)
    copy_to: str | None = None
    reach: dict[str, Any] | None = None

    def __init__(self, servers: int = 1) -> None:
        self.servers = servers
        self.machines = [Machine(name="machine-0", address="127.0.0.1", interface="lo")]
        self.master_port = 0  # ports are chosen on entering, shortly before they are used

    def __enter__(self) -> LocalBackend:
        for finding in segment_findings():
            if finding.status == FAIL:
                raise InputError(finding.detail, finding.remedy)
        first = free_ports(self.servers + 1)
        self.machines = [replace(self.machines[0], port=first)]
        self.master_port = first + self.servers
        return self

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command. The arguments are those of ``subprocess.Popen``."""
        assert machine == self.machines[0]
        return subprocess.Popen([str(arg) for arg in argv], start_new_session=True, **kwargs)

    def explain_end(self) -> str | None:
        """Return None, because this computer does not end during a job."""
        return None

    def rsync_shell(self, machine: Machine) -> None:
        """Part of being a ``Cluster``."""

    def __exit__(self, *_exc: object) -> None:
        pass
