"""One machine, this one, without namespaces: what ``--machines 1`` runs on."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tutorial_lib.cluster.spec import Machine
from tutorial_lib.errors import InputError

LOCK = Path("/dev/shm/tutorial_lib.lock")


def free_ports(count: int, address: str = "127.0.0.1") -> int:
    """First of ``count`` ports in a row on which nobody listens at this moment."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind((address, 0))
            first = probe.getsockname()[1]
        if first + count < 65536 and all(_is_free(address, first + k) for k in range(count)):
            return first
    raise InputError(f"found no {count} free ports in a row on {address}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


class LocalCluster:
    """This computer as a cluster of one machine, on the loopback interface.

    Args:
        servers: DGL servers it will run; so many ports in a row are looked for.

    Raises:
        InputError: another job uses this host's /dev/shm, or a killed one left its data there.
            DGL names shared memory after the feature alone, so both would corrupt each other.
    """

    def __init__(self, servers: int = 1) -> None:
        port = free_ports(servers)
        self.machines = [Machine(name="machine-0", address="127.0.0.1", port=port, interface="lo")]
        self._lock: IO | None = None

    def __enter__(self) -> LocalCluster:
        self._lock = open(LOCK, "a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise InputError(
                "another job with --machines 1 is running on this host; both would share /dev/shm",
                "Wait for it to end, or use --emulate N: each emulated machine has its own /dev/shm.",
            ) from None
        left = dgl_segments()
        if left:
            self.__exit__()
            raise InputError(
                f"/dev/shm holds {len(left)} shared-memory files of another DGL job, for example {left[0]}",
                "If no DGL job is running any more, remove them: rm "
                + " ".join(f"'/dev/shm/{name}'" for name in left[:20]),
            )
        return self

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command; the arguments are those of ``subprocess.Popen``."""
        assert machine == self.machines[0]
        return subprocess.Popen([str(arg) for arg in argv], start_new_session=True, **kwargs)

    def __exit__(self, *_exc: object) -> None:
        if self._lock is not None:
            LOCK.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def dgl_segments() -> list[str]:
    """Names of files in /dev/shm that look like those of a DGL server: graph structure or features."""
    marks = ("kvdata", "_part", "_dist_graph", "meta_")
    names = sorted(os.listdir("/dev/shm"))
    return [name for name in names if any(mark in name for mark in marks)]
