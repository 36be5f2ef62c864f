"""One machine, this one, without namespaces: what ``--machines 1`` runs on."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutorial_lib.cluster.preflight_checks import leftover_problems
from tutorial_lib.cluster.shm import clean_leftovers, leftovers
from tutorial_lib.cluster.spec import Machine
from tutorial_lib.errors import InputError

LOCK = "\0tutorial_lib.shm"  # abstract socket name: no file, and the kernel frees it with its holder


def free_ports(count: int) -> int:
    """First of ``count`` ports in a row on which nobody listens at this moment, on the loopback interface."""
    for _ in range(100):
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as probes:
            first = 0
            for k in range(count):  # one may be in use, or be 65536
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", first and first + k))
                first = first or probe.getsockname()[1]
            return first
    raise InputError(f"found no {count} free ports in a row on 127.0.0.1")


class LocalCluster:
    """This computer as a cluster of one machine, on the loopback interface.

    Args:
        servers: DGL servers it will run; so many ports in a row are looked for.

    Raises:
        InputError: another job uses this host's /dev/shm, or a killed one left its data there, see ``shm``.
    """

    copy_to: str | None = None
    reach: dict[str, Any] | None = None

    def __init__(self, servers: int = 1) -> None:
        self.servers = servers
        self.machines = [Machine(name="machine-0", address="127.0.0.1", interface="lo")]
        self.master_port = 0  # ports are chosen on entering, when they are about to be used
        self._leaving = contextlib.ExitStack()

    def __enter__(self) -> LocalCluster:
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                lock.bind(LOCK)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                remedy = "Wait for it to end, or use --emulate N: each emulated machine has its own /dev/shm."
                message = "another job with --machines 1 is running on this host; both would share /dev/shm"
                raise InputError(message, remedy) from None
            clean_leftovers()
            for problem in leftover_problems(leftovers()):
                raise InputError(problem.detail, problem.remedy)
            first = free_ports(self.servers + 1)
            self._leaving = stack.pop_all()
        self.machines = [replace(self.machines[0], port=first)]
        self.master_port = first + self.servers
        return self

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command; the arguments are those of ``subprocess.Popen``."""
        assert machine == self.machines[0]
        return subprocess.Popen([str(arg) for arg in argv], start_new_session=True, **kwargs)

    def rsync_shell(self, machine: Machine) -> None:
        """Part of being a ``Cluster``."""

    def __exit__(self, *_exc: object) -> None:
        self._leaving.close()
