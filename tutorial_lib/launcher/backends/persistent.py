"""Persistent emulated machines, which all commands of their owner can use.

A file in a folder of their owner in /var/tmp describes them. Their daemon (see ``emulator``) keeps a lock on this file,
so the kernel frees the name when the daemon ends. In the same way, a job locks the machines that it uses.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from tutorial_lib.errors import InputError, attempts
from tutorial_lib.files import parse_memory
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.ssh_servers import write_ssh_config
from tutorial_lib.launcher.jobspec import Machine

STOP_SECONDS, GONE_SECONDS = 30.0, 0.5
DEFAULT_NAME = "lab"
REGISTRY = Path("/var/tmp")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_ttl(text: str) -> int:
    """Convert ``"8h"``, ``"90m"`` or ``"30s"`` to seconds."""
    match = re.fullmatch(r"(\d{1,7})([smhd])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= 30 * 86400:
        raise InputError(f"--ttl {text!r} is not a time from 1s to 30d", "Examples: 8h, 90m, 2d.")
    return seconds


def _path_of(name: str) -> Path:
    """Return the path of a description. Process IDs are valid in one PID namespace, so each has its own folder."""
    folder = REGISTRY / f"tutorial_lib-{os.getuid()}-{os.stat('/proc/self/ns/pid').st_ino}"
    with contextlib.suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            raise InputError(f"{folder} belongs to another user", "Ask this user or an administrator to remove it.")
    return folder / name


def _lock(path: Path) -> IO[str]:
    """Open a file, lock it until it is closed, and empty it. If another process holds the lock, the call fails."""
    file = path.open("a+")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.truncate(0)
    return file


def _read_locked(path: Path) -> str:
    """Return the text of a file that a process keeps locked, or an empty string if there is none."""
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return ""


def names() -> list[str]:
    """Return the names of all running machines of this user."""
    return sorted(path.name for path in _path_of("").glob("*") if _read_locked(path))


def describe(name: str) -> SimpleNamespace:
    """Return the state of persistent machines, as ``machines list --json`` prints it.

    Times are in seconds since the epoch. ``pid`` is the daemon, and ``pids`` are the first processes of the machines.
    If this user has no running machines of this name, this raises an InputError.
    """
    if text := _read_locked(_path_of(name)):
        found = json.loads(text)
        return SimpleNamespace(**found, job=_read_locked(Path(found["folder"], "job")) or None)
    remedy = f"Start some with: python -m tutorial_lib machines start 2 --name {name}"
    if running := names():
        remedy = f"Running: {', '.join(running)}; --name {running[0]} takes those. {remedy}"
    raise InputError(f"no machines named {name!r} are running", remedy)


class PersistentBackend(EmulatedBackend):
    """Persistent machines as the backend of one job or, without ``job``, of a command that runs beside a job."""

    _job: IO[str] | None = None  # a file that is locked by this job

    def __init__(self, name: str = DEFAULT_NAME, count: int | None = None, *, job: bool = True) -> None:
        found = describe(name)
        running = len(found.machines)
        if count is not None and not 1 <= count <= running:
            raise InputError(f"there are {running} machines named {name!r}, not {count}")
        super().__init__(running, own_disks=found.own_disks)
        # /dev/shm outlives a job, so a job removes the files of a killed server.
        self.traits = replace(self.traits, private_shm=False)
        self.machines, self.folder, self.pid = self.machines[:count], Path(found.folder), found.pid
        self.pids = dict(zip(found.machines, found.pids, strict=True))
        self.name, self._is_job = name, job

    def __enter__(self) -> "PersistentBackend":
        if self._is_job:
            try:
                self._job = _lock(self.folder / "job")
            except BlockingIOError:
                remedy = "Wait for its end, or start others: python -m tutorial_lib machines start 2 --name other"
                user = describe(self.name).job
                raise InputError(f"the machines {self.name!r} are used by {user}", remedy) from None
            command = " ".join([Path(sys.argv[0]).stem.replace("__main__", "tutorial_lib"), *sys.argv[1:]])[:200]
            print(f"process {os.getpid()} ({command})", file=self._job, end="", flush=True)
        return self

    def change_link(self, machine: Machine, do: str, wire: str | None = None) -> None:
        """Change the link of a machine, and its description."""
        super().change_link(machine, do, wire)
        found = json.loads(_read_locked(_path_of(self.name)))
        if do == "wire":
            found["wires"][found["machines"].index(machine.name)] = None if wire == "unshaped" else wire
        else:
            found["cut"] = [name for name in found["cut"] if name != machine.name] + [machine.name] * (do == "cut")
        _path_of(self.name).write_text(json.dumps(found))

    def explain_end(self) -> str | None:
        """Return that the machines have ended during a job, or None while they run."""
        time.sleep(GONE_SECONDS)  # for the kernel to kill their processes
        if all(os.path.exists(f"/proc/{pid}") for pid in self.pids.values()):
            return None
        return f"the machines {self.name!r} ended during the job (machines stop, --ttl, or a killed daemon)"

    def __exit__(self, *_exc: object) -> None:
        """End the reservation of the machines for this job."""
        if self._job is not None:
            self._job.close()


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
        ssh: write a configuration with which ssh reaches the machines.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,30}", name):
        raise InputError(f"{name!r} is not a name for machines", "Letters, digits, - and _, at most 31: lab, wire_200.")
    ends, shm_bytes = time.time() + parse_ttl(ttl), None if shm is None else parse_memory(shm)
    cluster = EmulatedBackend(count, wire=wire, shm_bytes=shm_bytes, own_disks=own_disks)
    _path_of("").mkdir(mode=0o700, exist_ok=True)
    try:
        cluster.registration = _lock(_path_of(name))
    except BlockingIOError:
        found = describe(name)
        started = f"{len(found.machines)}, since {time.ctime(found.started)} (process {found.pid})"
        remedy = f"Use them (--on {name}), or stop them: python -m tutorial_lib machines stop {name}"
        raise InputError(f"machines named {name!r} are running: {started}", remedy) from None
    with cluster.registration, cluster:
        found = {"name": name, "started": time.time(), "ends": ends, "own_disks": own_disks, "cut": []}
        found |= {"pid": cluster.pid, "pids": [*cluster.pids.values()], "wires": [wire] * count}
        found |= {"machines": [*cluster.pids], "addresses": [machine.address for machine in cluster.machines]}
        found |= {"folder": str(cluster.folder), "ssh_config": write_ssh_config(cluster) if ssh else None}
        print(json.dumps(found), file=cluster.registration, flush=True)
        cluster.stay(ends)
    return describe(name)


def stop(name: str = DEFAULT_NAME) -> None:
    """Stop the machines. The kernel kills their processes. If no such machines run, this raises an InputError."""
    os.kill(describe(name).pid, signal.SIGTERM)
    for _left in attempts(f"the machines {name!r} to be switched off", STOP_SECONDS):
        if name not in names():
            return
