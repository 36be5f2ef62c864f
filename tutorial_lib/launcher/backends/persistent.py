"""Persistent emulated machines, which all commands of their owner can use.

Their daemon (see ``emulator``) listens on an abstract Unix socket, which the kernel frees when the daemon ends. Every
user may bind every abstract socket, so client and daemon check the user of their peer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import re
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tutorial_lib.errors import InputError, attempts
from tutorial_lib.files import parse_memory
from tutorial_lib.launcher.backends import ssh_servers
from tutorial_lib.launcher.backends.emulated import ANSWER_SECONDS, MESSAGE_BYTES, Connection, EmulatedBackend, peer_of

STOP_SECONDS, GONE_SECONDS = 30.0, 0.5
DEFAULT_NAME = "lab"
_NAME = re.compile(r"[A-Za-z][\w-]{0,30}", re.ASCII)
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


def bound() -> list[str]:
    """Return the names in use by machines of this user, or by another user with such a socket."""
    prefix = "@" + socket_name("")[1:]
    words = [line.split()[-1] for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]]
    found = {word.removeprefix(prefix) for word in words if word.startswith(prefix)}
    return sorted(name for name in found if _NAME.fullmatch(name))


def names() -> list[str]:
    """Return the names of all machines of this user, including machines that are still starting."""
    found = []
    for name in bound():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            code = probe.connect_ex(socket_name(name))  # ECONNREFUSED during the setup, EAGAIN with many clients
            if code in (errno.ECONNREFUSED, errno.EAGAIN) or (code == 0 and peer_of(probe)[1] == os.getuid()):
                found.append(name)
    return found


@dataclass(frozen=True)
class Standing:
    """State of persistent machines, as ``machines list --json`` prints it."""

    name: str
    machines: list[str]
    addresses: list[str]
    wires: list[str | None]  # rate of each machine's cable, or None without a limit
    cut: list[str]  # names of the machines with a cut cable
    started: float  # seconds since the epoch
    ends: float
    user: str  # owner of the daemon
    pid: int
    job: str | None  # the job that uses the machines: "process 123 (train ...)"
    ssh_config: str | None  # configuration file for ssh to the machines, or None without ``--ssh``
    own_disks: bool
    folder: str  # a folder of this computer that is removed together with the machines


class Line(Connection):
    """A connection to persistent machines. If this user has no machines of this name, it raises an InputError."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            remedy = "Letters, digits, - and _, at most 31: lab, wire_200."
            raise InputError(f"{name!r} is not a name for machines", remedy)
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), f"the machines {name!r}")
        self.socket.settimeout(ANSWER_SECONDS)
        try:
            self.socket.connect(socket_name(name))
        except OSError:
            self.close()
            remedy = f"Start some with: python -m tutorial_lib machines start 2 --name {name}"
            if running := names():
                remedy = f"Running: {', '.join(running)}; --name {running[0]} takes those. {remedy}"
            raise InputError(f"no machines named {name!r} are running", remedy) from None
        self.pid, user, _group = peer_of(self.socket)
        if user != os.getuid():
            self.close()
            raise InputError(f"the machines {name!r} belong to another user (id {user})", "Choose another --name.")

    def describe(self) -> Standing:
        """Return the state of the machines."""
        answer = self.ask("describe")
        del answer["files"]
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # the user of a container may have no name
            user = f"user {os.getuid()}"
        return Standing(**answer, user=user, pid=self.pid)


class PersistentBackend(EmulatedBackend):
    """Persistent machines as the cluster of one job or, without ``job``, of a command that runs beside a job."""

    def __init__(self, name: str = DEFAULT_NAME, count: int | None = None, *, job: bool = True) -> None:
        with contextlib.closing(Line(name)) as line:
            found = line.describe()
        running = len(found.machines)
        if count is not None and not 1 <= count <= running:
            raise InputError(f"there are {running} machines named {name!r}, not {count}")
        super().__init__(running, own_disks=found.own_disks)
        self.machines, self.folder = self.machines[:count], Path(found.folder)
        # /dev/shm outlives a job, so a job removes the files of a killed server.
        self.traits = replace(self.traits, private_shm=False)
        self.name, self._job = name, job

    def _start(self, *, user_namespace: bool) -> None:  # noqa: ARG002  the daemon is running
        self._line = Line(self.name)
        if self._job:
            command = " ".join([Path(sys.argv[0]).stem.replace("__main__", "tutorial_lib"), *sys.argv[1:]])[:200]
            self._line.ask("use", who=f"process {os.getpid()} ({command})")

    def explain_end(self) -> str | None:
        """Return why the machines have ended during a job, or None while they run."""
        if self._line is None:
            return None
        self._line.socket.settimeout(GONE_SECONDS)
        try:
            message = self._line.socket.recv(MESSAGE_BYTES)
        except TimeoutError:
            return None
        except OSError:
            message = b""
        why = json.loads(message)["gone"] if message else "their daemon was killed"
        return f"the machines {self.name!r} ended during the job: {why}"


def start(
    count: int,
    *,
    name: str = DEFAULT_NAME,
    wire: str | None = None,
    shm: str | None = None,
    ttl: str = "8h",
    ssh: bool = False,
    own_disks: bool = False,
) -> Standing:
    """Start persistent machines, and wait until they are ready.

    Args:
        count, wire, own_disks: see ``EmulatedBackend``, which also lists the errors.
        shm: size of each machine's /dev/shm, such as ``"2GB"``. Without it, the size is half of the memory.
        ttl: time after which the machines stop without a command, such as ``"8h"``.
        ssh: start an ssh server on each machine.
    """
    shm_bytes = None if shm is None else parse_memory(shm)
    if ssh:
        ssh_servers.check_programs()
    ends = time.time() + parse_ttl(ttl)
    cluster = EmulatedBackend(count, wire=wire, shm_bytes=shm_bytes, own_disks=own_disks)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(socket_name(name))
        except OSError:
            with contextlib.closing(Line(name)) as line:
                found = line.describe()
            started = f"{len(found.machines)}, since {time.ctime(found.started)} (process {found.pid})"
            remedy = f"Use them (--on {name}), or stop them: python -m tutorial_lib machines stop {name}"
            raise InputError(f"machines named {name!r} are running: {started}", remedy) from None
        with cluster:
            config = ssh_servers.start_ssh_servers(cluster, name) if ssh else None
            cluster.stay(listener, name=name, ends=ends, ssh_config=config)
    with contextlib.closing(Line(name)) as line:
        return line.describe()


def stop(name: str = DEFAULT_NAME) -> None:
    """Stop the machines. The kernel kills their processes. If no such machines run, this raises an InputError."""
    with contextlib.closing(Line(name)) as line:
        line.ask("stop")
    for _left in attempts(f"the machines {name!r} to be switched off", STOP_SECONDS):
        if name not in bound():
            return
