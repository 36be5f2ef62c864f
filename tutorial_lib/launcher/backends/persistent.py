"""Persistent emulated machines, which all commands of their owner can use.

A file in a folder of their owner in /var/tmp describes them. Their daemon (``machine_daemon``) keeps a lock on this
file, so the kernel frees the name when the daemon ends. In the same way, a job locks the machines that it uses.
"""

import contextlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

from tutorial_lib.errors import InputError, retry_until_timeout
from tutorial_lib.files import lock_holder, parse_memory, try_lock
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.jobspec import Machine

DEFAULT_NAME = "lab"
REGISTRY = Path("/var/tmp")
LOCK_OF_JOB = "hosts"  # any file in the folder of the machines


def parse_ttl(text: str) -> int:
    """Convert ``"8h"``, ``"90m"`` or ``"30s"`` to seconds."""
    match = re.fullmatch(r"(\d{1,7})([smhd])", text)
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0
    if not 1 <= seconds <= 30 * 86400:
        raise InputError(f"--ttl {text!r} is not a time from 1s to 30d", "Examples: 8h, 90m, 2d.")
    return seconds


def description_path(name: str) -> Path:
    """Return the path of a description. Process IDs are valid in one PID namespace, so each has its own folder."""
    folder = REGISTRY / f"tutorial_lib-{os.getuid()}-{os.stat('/proc/self/ns/pid').st_ino}"
    with contextlib.suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            raise InputError(f"{folder} belongs to another user", "Ask this user or an administrator to remove it.")
    return folder / name


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        return try_lock(file.fileno()) is False
    return False


def running_names() -> list[str]:
    """Return the names of all running machines of this user."""
    return sorted(path.name for path in description_path("").glob("*") if _is_locked(path))


def describe_machines(name: str) -> SimpleNamespace:
    """Return the state of persistent machines, as ``machines list --json`` prints it, or raise an InputError."""
    path = description_path(name)
    if _is_locked(path) and path.stat().st_size > 0:
        state = SimpleNamespace(**json.loads(path.read_text()))
        lock = Path(state.folder, LOCK_OF_JOB)
        state.job = lock_holder(lock) if _is_locked(lock) else None
        return state
    running = ", ".join(running_names()) or "none"
    remedy = f"Running: {running}. Start some with: python -m tutorial_lib machines start 2 --name {name}"
    raise InputError(f"no machines named {name!r} are running", remedy)


class PersistentBackend(EmulatedBackend):
    """Persistent machines. Entering locks them for a job. Other commands use them without the lock."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        state = describe_machines(name)
        super().__init__(len(state.machines), own_disks=state.own_disks)
        self.name = name
        self.folder = Path(state.folder)
        self.pid, self.pids = state.pid, state.pids
        self._lock = (self.folder / LOCK_OF_JOB).open()  # the machines can end before a job enters them

    def __enter__(self) -> "PersistentBackend":
        if try_lock(self._lock.fileno()) is False:
            remedy = "Wait until it ends, or start others: python -m tutorial_lib machines start 2 --name other"
            raise InputError(f"the machines {self.name!r} are used by {lock_holder(Path(self._lock.name))}", remedy)
        return self

    def change_link(self, machine: Machine, action: str, wire: str | None = None) -> None:
        super().change_link(machine, action, wire)
        path = description_path(self.name)
        state = json.loads(path.read_text())
        key = "wires" if action == "wire" else "cut"
        state[key][state["machines"].index(machine.name)] = wire if action == "wire" else action == "cut"
        path.write_text(json.dumps(state))

    def __exit__(self, *_exc: object) -> None:
        self._lock.close()


def start_machines(
    count: int,
    *,
    name: str = DEFAULT_NAME,
    wire: str | None = None,
    shm: str | None = None,
    ttl: str = "8h",
    ssh: bool = False,
    own_disks: bool = False,
) -> SimpleNamespace:
    """Start persistent machines, wait until they are ready, and return their description."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,30}", name):
        raise InputError(f"{name!r} is not a name for machines", "Use up to 31 letters, digits, - and _, as in lab-2.")
    end_time = time.time() + parse_ttl(ttl)
    shm_bytes = None if shm is None else parse_memory(shm)
    backend = EmulatedBackend(count, wire=wire, shm_bytes=shm_bytes, own_disks=own_disks)
    path = description_path(name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("a+") as registration:
        if try_lock(registration.fileno()) is False:
            remedy = f"Use them (--on {name}), or stop them: python -m tutorial_lib machines stop {name}"
            raise InputError(f"machines named {name!r} are running", remedy)
        registration.truncate(0)
        backend.registration = registration
        with backend:
            state = {"name": name, "ends": end_time, "pid": backend.pid, "pids": backend.pids, "own_disks": own_disks}
            addresses = {machine.name: machine.address for machine in backend.machines}
            hosts = {"machines": list(addresses), "folder": str(backend.folder), "addresses": list(addresses.values())}
            links = {"cut": [False] * count, "wires": [wire] * count}
            config = _write_ssh_config(backend) if ssh else None
            print(json.dumps({**state, **hosts, **links, "ssh_config": config}), file=registration, flush=True)
            backend.keep_running(end_time)
    return describe_machines(name)


def stop_machines(name: str = DEFAULT_NAME) -> None:
    """Stop the machines. The kernel kills their processes. If no such machines run, this raises an InputError."""
    os.kill(describe_machines(name).pid, signal.SIGTERM)
    remedy = "End or resume suspended programs that use them: jobs, fg, kill -CONT PID"
    for _ in retry_until_timeout(f"the machines {name!r} to be switched off", 30.0, remedy=remedy):
        if name not in running_names():
            return


def find_program(name: str) -> str | None:
    """Return the path of a program, or None. For each folder ``X/bin`` of PATH, ``X/sbin`` is searched as well."""
    folders = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=f"{folders}:{re.sub('/bin(?=:|$)', '/sbin', folders)}")


def _write_ssh_config(backend: EmulatedBackend) -> str:
    """Write a configuration with which ``ssh -F CONFIG machine-0`` reaches the machines, and return its path."""
    # This computer does not reach their network, so ssh starts a server on the machine for each connection.
    folder = backend.folder / "ssh"
    sshd = find_program("sshd")
    if sshd is None or find_program("ssh-keygen") is None:
        raise InputError("--ssh: this computer has no ssh server", "Install one: sudo apt install openssh-server")
    folder.mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server refuses to start without it
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tutorial_lib", "-f", f"{folder}/key"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    server = f"HostKey {folder}/key\nAuthorizedKeysFile {folder}/key.pub\nPermitRootLogin yes\n"
    (folder / "sshd_config").write_text(f"{server}StrictModes no\nUsePAM no\nPrintMotd no\n")
    # Only this user can start the servers, so nobody can imitate one.
    lines = [f"User {pwd.getpwuid(os.getuid()).pw_name}", f"IdentityFile {folder}/key", "IdentitiesOnly yes"]
    lines += ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", "LogLevel ERROR"]
    for machine in backend.machines:
        if machine in backend.private_disk_machines:
            shutil.copytree(folder, backend.on_disk(machine, folder))
        proxy = backend.command(machine, [sshd, "-i", "-f", f"{folder}/sshd_config"], "/", as_user=True)
        lines += [f"Host {machine.name} {machine.address}", f"    ProxyCommand {shlex.join(proxy).replace('%', '%%')}"]
    (folder / "ssh_config").write_text("\n".join([*lines, ""]))
    return f"{folder}/ssh_config"
