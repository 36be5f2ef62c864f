"""Emulated machines, which are network hosts on this computer, without root and without docker.

Each machine has a separate IPv4 address, host name, process list, network link and /dev/shm. (Machines with a common
/dev/shm would silently overwrite each other's data, see ``shm``.)

With private disks, folders of this computer are mounted over the folders that machines would share. ``/home/me`` is
then private and empty, and so are ``runs`` and ``data`` in the read-only checkout ``/home/me/course``.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject
from tutorial_lib.launcher.backends import Backend, Traits, namespaces, wait_or_kill
from tutorial_lib.launcher.environment import CHECKOUT, run_module
from tutorial_lib.launcher.jobspec import Machine

SUBNET = "10.77.0"
MAX_MACHINES = 64
DAEMON = run_module("tutorial_lib.launcher.backends.machine_daemon")
SLOWEST_WIRE = 125_000  # bytes per second
SETTINGS_OF_LINUX = [  # name, a value that forbids user namespaces, and a value that allows them
    ("kernel.unprivileged_userns_clone", "0", 1),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", 0),
    ("user.max_user_namespaces", "0", 15000),
]
COPY_TO = "/tmp/tutorial"  # on machines with private disks: /tmp is always one of the private folders
KILLED_HINT = "were its emulated machines stopped (machines stop, --ttl)?"
SYSTEM = ("", "bin", "dev", "etc", "lib", "lib64", "nix", "opt", "proc", "run", "sys", "usr", "var")  # in /, shared


class EmulationUnavailable(InputError):
    """This host does not allow emulated machines. The message names the step that the kernel refused."""


def parse_wire(text: str | None) -> int | None:
    """Convert ``"200mbit"`` or ``"1gbit"`` to bytes per second. ``None`` and ``"unshaped"`` mean no limit."""
    if text is None or text == "unshaped":
        return None
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([kmg])bit", text.strip().lower())
    rate = int(float(match[1]) * 1000 ** " kmg".index(match[2]) / 8) if match else 0
    if rate < SLOWEST_WIRE:
        raise InputError(f"--wire {text!r} is not a rate of 1mbit or more", "Examples: 1gbit, 200mbit, unshaped.")
    return rate


class EmulatedBackend(Backend):
    """Emulated machines, which run inside a block such as ``with EmulatedBackend(2, wire="1gbit") as backend``.

    ``wire`` limits the bandwidth of each link in both directions. ``shm_bytes`` is the size of each /dev/shm, by
    default half of the memory. With ``own_disks``, each machine has a private, empty home, /tmp, data folder and run
    folder, and the ``private`` folders, which are created if they do not exist.
    """

    registration: IO[str] | None = None  # a locked file that is kept open and then removed by the daemon
    _daemon: Any = None
    folder: Path  # on this computer, with the private disks. It is removed together with the machines
    pid: int  # PID of the daemon
    pids: dict[str, int]  # PID of the first process of each machine

    def __init__(
        self,
        count: int,
        *,
        wire: str | None = None,
        shm_bytes: int | None = None,
        own_disks: bool = False,
        private: Iterable[Path] = (),
    ) -> None:
        if not 1 <= count <= MAX_MACHINES:
            raise InputError(f"cannot emulate {count} machines, expected 1 to {MAX_MACHINES}")
        self.rate = parse_wire(wire)
        self.shm_bytes = shm_bytes
        self.private = private
        cpus = sorted(os.sched_getaffinity(0))
        shares = [cpus[k::count] or [cpus[k % len(cpus)]] for k in range(count)]  # machines can share a CPU
        self.machines = [Machine(f"machine-{k}", f"{SUBNET}.{k + 1}", cpus=tuple(shares[k])) for k in range(count)]
        self.private_disk_machines = list(self.machines) if own_disks else []  # machines with private disks
        self.traits = Traits(copy_to=COPY_TO if own_disks else None, killed_hint=KILLED_HINT)

    def on_disk(self, machine: Machine, path: Path | str) -> Path:
        """Return the path on this computer of a private folder of a machine, or of a file in one."""
        return Path(f"{self.folder}/{machine.name}{path}")

    def __enter__(self) -> "EmulatedBackend":
        request: JsonObject = {"rate": self.rate, "shm_bytes": self.shm_bytes}
        request["machines"] = {machine.name: machine.address for machine in self.machines}
        request["layers"] = {machine.name: _list_layers(self.private) for machine in self.private_disk_machines}
        request["registration"] = self.registration and self.registration.name
        inherited = [self.registration.fileno()] if self.registration else []
        # The daemon ends when its standard input ends. A reader of our standard error would wait for the daemon.
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with contextlib.ExitStack() as stack:
            stack.push(self)  # an error below stops the machines
            self._daemon = subprocess.Popen(DAEMON, start_new_session=True, cwd=CHECKOUT, pass_fds=inherited, **pipes)
            print(json.dumps(request), file=self._daemon.stdin, flush=True)
            answer: JsonObject = {}
            with self._daemon.stdout as lines:  # one line of the daemon and of each machine
                while "error" not in answer and len(answer) < 2 + len(self.machines):
                    answer.update(json.loads(lines.readline() or '{"error": "the daemon of the machines was killed"}'))
            if "error" in answer:
                raise EmulationUnavailable(f"this host does not allow emulated machines: {answer['error']}", _remedy())
            stack.pop_all()
        self.pid = answer.pop("daemon")
        self.folder = Path(answer.pop("folder"))
        self.pids = answer  # the rest
        return self

    def keep_running(self, end_time: float) -> None:
        """Keep the machines running when this process ends, until a time in seconds since the epoch."""
        with self._daemon.stdin as line:
            line.write(str(end_time))
        self._daemon = None

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        # As over ssh, a command starts in / because Python imports from its working directory.
        cwd = kwargs.pop("cwd", None) or ("/" if machine in self.private_disk_machines else Path.cwd())
        return subprocess.Popen(self.command(machine, argv, cwd), start_new_session=True, **kwargs)

    def command(self, machine: Machine, argv: Sequence[str], cwd: str | Path, *, as_user: bool = False) -> list[str]:
        """Return the command that runs ``argv`` on a machine, with the ID of root unless ``as_user`` is true."""
        ids = [os.geteuid(), os.getegid()] if as_user and os.geteuid() != 0 else []
        request = {"pid": self.pids[machine.name], "cwd": str(cwd), "cpus": list(machine.cpus), "ids": ids}
        return [sys.executable, "-I", "-S", namespaces.__file__, json.dumps(request), *map(str, argv)]

    def rsync_shell(self, machine: Machine) -> list[str]:
        return self.command(machine, ["sh", "-c", 'eval "$*"'], "/") if machine in self.private_disk_machines else []

    def machine(self, name: str) -> Machine:
        if matches := [machine for machine in self.machines if machine.name == name]:
            return matches[0]
        raise InputError(f"there is no machine {name!r}", f"Use {self.machines[0].name} to {self.machines[-1].name}.")

    def change_link(self, machine: Machine, action: str, wire: str | None = None) -> None:
        """``cut`` the link of a machine (packets are lost silently), ``mend`` it, or change its rate (``wire``)."""
        link = {"daemon": self.pid, "machine": self.pids[machine.name], "port": f"to-{machine.name}"}
        request = json.dumps({**link, "action": action, "rate": parse_wire(wire)})
        result = subprocess.run(DAEMON, cwd=CHECKOUT, input=request, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            raise InputError(f"cannot {action} the link of {machine.name}: {result.stderr.strip()}")

    def __exit__(self, *_exc: object) -> None:
        """Stop the machines unless they stay. The kernel kills all processes on them."""
        if self._daemon is not None:
            self._daemon.stdin.close()
            wait_or_kill(self._daemon, 10)
        self._daemon = None


def _remedy() -> str:
    """Return the change of this host that would allow the refused step."""
    hint = "If this is a container, start it with --privileged (or a seccomp profile that allows unshare and mount)."
    for name, bad, good in SETTINGS_OF_LINUX:
        with contextlib.suppress(OSError):  # most systems have one of them
            if Path("/proc/sys", name.replace(".", "/")).read_text().strip() == bad:
                hint = f"{name} is {bad}; an administrator can allow it with: sudo sysctl {name}={good}"
    return f"{hint}\nOne machine with several trainers works on every host: --machines 1 --trainers 2."


def _list_layers(extra: Iterable[Path]) -> list[tuple[str, bool]]:
    """Return the folders to mount on a machine with a private disk, outer ones first, and whether each is private."""
    cwd = Path.cwd()
    program = Path(sys.executable)
    packages = [Path(path) for path in sys.path if path.endswith("-packages")]
    visible = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix), *packages}
    while program.is_symlink():  # each link and its target must stay visible
        visible.add(program.parent)
        program = program.parent / program.readlink()
    visible.update([path.resolve() for path in [*visible, program.parent]])
    course = [] if CHECKOUT.name.endswith("-packages") else [CHECKOUT / "data", CHECKOUT / "runs"]
    workspace = [cwd / "runs"] if cwd.is_relative_to(CHECKOUT) else [cwd / "runs", cwd]
    private = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), Path.home(), *course, *workspace, *extra}
    private = {path.resolve() for path in private} - visible
    private = {path for path in private if path.parent != Path("/") or path.name not in SYSTEM}
    for path in private:
        with contextlib.suppress(OSError):  # somebody else's folder
            path.mkdir(parents=True, exist_ok=True)
    layers = [(str(path), path in private) for path in private | visible if path.is_dir()]
    return sorted(layers, key=lambda layer: layer[0].count("/"))
