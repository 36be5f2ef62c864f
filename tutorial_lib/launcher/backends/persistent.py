"""Persistent emulated machines, which all commands of their owner can use.

Their daemon (see ``emulator``) listens on an abstract Unix socket, which the kernel frees when the daemon ends. Every
user may bind every abstract socket, so client and daemon check the user of their peer.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from tutorial_lib.errors import InputError, attempts
from tutorial_lib.files import parse_memory
from tutorial_lib.launcher.backends import Traits, ssh_servers
from tutorial_lib.launcher.backends.emulated import Connection, EmulatedBackend, peer_of

STOP_SECONDS, GONE_SECONDS = 30.0, 0.5
DEFAULT_NAME = "lab"
_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,30}"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_ttl(text: str) -> float:
    """Convert ``"8h"``, ``"90m"`` or ``"30s"`` to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= 30 * 86400:
        raise InputError(f"--ttl {text!r} is not a time from 1s to 30d", "Examples: 8h, 90m, 2d.")
    return seconds


def socket_name(name: str) -> str:
    """Return the socket address of the daemon of the machines ``name``."""
    return f"\0tutorial_lib.machines.{os.getuid()}.{name}"


def _connect(name: str) -> Connection | None:
    """Return a connection to the daemon of this name, which another user may own, or None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(socket_name(name))
    except OSError:
        connection.close()
        return None
    return Connection(connection, f"the machines {name!r}")


def names() -> list[str]:
    """Return the names of all running machines of this user."""
    pattern = re.escape(socket_name("").replace("\0", "@")) + f"({_NAME})$"
    found = []
    for name in sorted(set(re.findall(pattern, Path("/proc/net/unix").read_text(errors="replace"), re.MULTILINE))):
        if connection := _connect(name):
            if peer_of(connection.socket)[1] == os.getuid():
                found.append(name)
            connection.close()
    return found


def connect(name: str) -> Connection:
    """Return a connection to persistent machines, or raise an InputError if this user has none of this name."""
    connection = _connect(name)
    if connection is None:
        remedy = f"Start some with: python -m tutorial_lib machines start 2 --name {name}"
        if running := names():
            remedy = f"Running: {', '.join(running)}; --name {running[0]} takes those. {remedy}"
        raise InputError(f"no machines named {name!r} are running", remedy)
    user = peer_of(connection.socket)[1]
    if user != os.getuid():
        connection.close()
        raise InputError(f"the machines {name!r} belong to another user (id {user})", "Choose another --name.")
    return connection


def describe(name: str) -> SimpleNamespace:
    """Return the state of persistent machines, as ``machines list --json`` prints it.

    It has the attributes name, machines, addresses, wires (bandwidth of each link, or None), cut (names of machines
    with a cut link), started and ends (seconds since the epoch), pids (on this computer, of the first process of each
    machine), pid (of the daemon), job (such as "process 123 (train ...)", or None), ssh_config (for ``ssh -F``, or
    None), own_disks, and folder (of this computer, removed together with the machines).
    """
    with contextlib.closing(connect(name)) as connection:
        return SimpleNamespace(**connection.ask("describe"), pid=peer_of(connection.socket)[0])


class PersistentBackend(EmulatedBackend):
    """Persistent machines as the backend of one job or, without ``job``, of a command that runs beside a job."""

    def __init__(self, name: str = DEFAULT_NAME, count: int | None = None, *, job: bool = True) -> None:
        found = describe(name)
        running = len(found.machines)
        if count is not None and not 1 <= count <= running:
            raise InputError(f"there are {running} machines named {name!r}, not {count}")
        super().__init__(running, own_disks=found.own_disks)
        # /dev/shm outlives a job, so a job removes the files of a killed server.
        self.traits = Traits(shares_computer=True, private_shm=False)
        self.machines, self.pids, self.folder = self.machines[:count], found.pids, Path(found.folder)
        self.name, self.reach, self._job = name, {"on": name}, job

    def _start(self, *, user_namespace: bool) -> None:  # noqa: ARG002  the daemon is running
        self._connection = connect(self.name)
        if self._job:
            command = " ".join([Path(sys.argv[0]).stem.replace("__main__", "tutorial_lib"), *sys.argv[1:]])[:200]
            self._connection.ask("use", who=f"process {os.getpid()} ({command})")

    def explain_end(self) -> str | None:
        """Return that the machines have ended during a job, or None while they run."""
        if self._connection is None or not select.select([self._connection.socket], [], [], GONE_SECONDS)[0]:
            return None
        return f"the machines {self.name!r} ended during the job (machines stop, --ttl, or a killed daemon)"


def start(
    count: int,
    *,
    name: str = DEFAULT_NAME,
    wire: str | None = None,
    shm: str | None = None,
    ttl: str = "8h",
    ssh: bool = False,
    own_disks: bool = False,
) -> SimpleNamespace:
    """Start persistent machines, wait until they are ready, and return their description.

    Args:
        count, wire, own_disks: see ``EmulatedBackend``, which also lists the errors.
        shm: size of each machine's /dev/shm, such as ``"2GB"``. Without it, the size is half of the memory.
        ttl: time after which the machines stop without a command, such as ``"8h"``.
        ssh: start an ssh server on each machine.
    """
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{name!r} is not a name for machines", "Letters, digits, - and _, at most 31: lab, wire_200.")
    if ssh:
        ssh_servers.check_programs()
    ends, shm_bytes = time.time() + parse_ttl(ttl), None if shm is None else parse_memory(shm)
    cluster = EmulatedBackend(count, wire=wire, shm_bytes=shm_bytes, own_disks=own_disks)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(socket_name(name))
        except OSError:
            found = describe(name)
            started = f"{len(found.machines)}, since {time.ctime(found.started)} (process {found.pid})"
            remedy = f"Use them (--on {name}), or stop them: python -m tutorial_lib machines stop {name}"
            raise InputError(f"machines named {name!r} are running: {started}", remedy) from None
        with cluster:
            config = ssh_servers.start_ssh_servers(cluster, name) if ssh else None
            cluster.stay(listener, name=name, ends=ends, ssh_config=config)
    return describe(name)


def stop(name: str = DEFAULT_NAME) -> None:
    """Stop the machines. The kernel kills their processes. If no such machines run, this raises an InputError."""
    with contextlib.closing(connect(name)) as connection:
        connection.ask("stop")
    for _left in attempts(f"the machines {name!r} to be switched off", STOP_SECONDS):
        if name not in names():
            return
