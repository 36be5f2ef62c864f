"""Emulated machines, which are network hosts on this computer, without root and without docker.

Each machine has a separate IPv4 address, host name, process list, network link and /dev/shm. (Machines with a common
/dev/shm would silently overwrite each other's data, see ``shm``.)
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import Backend, Traits, disks, namespaces, wait_or_kill
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.jobspec import Machine

SUBNET = "10.77.0"
MAX_MACHINES = 64
EMULATOR = run_module("tutorial_lib.launcher.backends.emulator")
SLOWEST_WIRE = 125_000  # bytes per second
SETTINGS_OF_LINUX = {  # name: a value that forbids user namespaces, and a value that allows them
    "kernel.unprivileged_userns_clone": ("0", 1),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", 0),
    "user.max_user_namespaces": ("0", 15000),
}
AnyBackend = TypeVar("AnyBackend", bound="EmulatedBackend")


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


def divide_cpus(count: int) -> list[tuple[int, ...]]:
    """Divide the CPUs of this process among machines. If there are fewer CPUs than machines, machines share them."""
    cpus = sorted(os.sched_getaffinity(0))
    return [tuple(cpus[k::count]) or (cpus[k % len(cpus)],) for k in range(count)]


class EmulatedBackend(Backend):
    """``with EmulatedBackend(2, wire="1gbit") as cluster: cluster.popen(cluster.machines[0], ["hostname"])``.

    Args:
        count: number of machines, 1 to 64.
        wire: bandwidth of each machine's link in both directions (``"1gbit"``), by default without a limit.
        shm_bytes: size of each machine's /dev/shm, by default half of the memory.
        own_disks: each machine has a private, empty home, /tmp, data folder and run folder, see ``disks``. Commands
            start in the home, or in ``/`` if ``popen`` starts them.
        private: additional private folders with ``own_disks``.

    Attributes:
        separate: machines with private disks.
        folder: a folder of this computer that is removed together with the machines.

    Raises:
        InputError: an argument is wrong. EmulationUnavailable: the host does not allow emulated machines.
    """

    master_port = 29500  # the default of torchrun. Each emulated machine has all ports free
    registration: IO[str] | None = None  # a locked file that is kept open and then removed by the daemon
    _daemon: Any = None

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
            raise InputError(f"cannot emulate {count} machines; possible are 1 to {MAX_MACHINES}")
        parse_wire(wire)
        self.wire, self.shm_bytes, self.private = wire, shm_bytes, list(private)
        self.machines = [
            Machine(name=f"machine-{k}", address=f"{SUBNET}.{k + 1}", interface="eth0", cpus=cpus)
            for k, cpus in enumerate(divide_cpus(count))
        ]
        self.separate = list(self.machines) if own_disks else []
        copy_to = disks.COPY_TO if own_disks else None
        self.traits = Traits(shares_computer=True, private_shm=True, copy_to=copy_to)
        self.folder = Path()

    def on_disk(self, machine: Machine, path: Path | str) -> Path:
        """Return the path on this computer of a private folder of a machine, or of a file in one."""
        return Path(f"{self.folder}/{machine.name}{path}")

    def __enter__(self: AnyBackend) -> AnyBackend:
        self.folder = disks.create_folder()
        separate = [machine.name for machine in self.separate]
        plan: dict[str, Any] = {"machines": [machine.name for machine in self.machines], "separate": separate}
        plan |= {"hosts": {"localhost": "127.0.0.1", **{machine.name: machine.address for machine in self.machines}}}
        plan |= {"layers": disks.list_layers(self.private) if separate else [], "folder": str(self.folder)}
        plan |= {"rate": parse_wire(self.wire), "shm_bytes": self.shm_bytes}
        plan |= {"registration": self.registration and self.registration.name}
        with contextlib.ExitStack() as stack:
            stack.callback(self.__exit__)
            self._daemon = subprocess.Popen(
                EMULATOR,
                stdin=subprocess.PIPE,  # its end is the end of the machines
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a reader of our pipe would wait until the daemon ends
                text=True,
                start_new_session=True,  # Ctrl-C in the terminal is for the coordinator to handle
                cwd=disks.CHECKOUT,
                pass_fds=[self.registration.fileno()] if self.registration else [],
            )
            print(json.dumps(plan), file=self._daemon.stdin, flush=True)
            with self._daemon.stdout as answer:
                found = json.loads(answer.readline() or '{"error": "their daemon was killed"}')
            if "error" in found:
                raise EmulationUnavailable(f"this host does not allow emulated machines: {found['error']}", _remedy())
            self.pid: int = found["pid"]
            self.pids: dict[str, int] = found["pids"]  # of the first process of each machine
            stack.pop_all()
        return self

    def stay(self, ends: float) -> None:
        """Keep the machines running when this process ends, until a time in seconds since the epoch."""
        with self._daemon.stdin as line:
            line.write(str(ends))
        self._daemon = None

    def popen(
        self, machine: Machine, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.Popen:
        """Start a command on an emulated machine. The arguments are those of ``subprocess.Popen``."""
        cwd = kwargs.pop("cwd", None)
        if machine in self.separate:
            cwd = cwd or "/"  # as over ssh, because Python imports from its working directory
            env = os.environ if env is None else env
            env = {**env, "PYTHONPATH": disks.python_path(env)}
        # A new session, because Ctrl-C in the terminal is for the coordinator to handle.
        return subprocess.Popen(self.command(machine, argv, cwd), start_new_session=True, env=env, **kwargs)

    def command(
        self, machine: Machine, argv: Sequence[str], cwd: Path | str | None = None, *, as_user: bool = False
    ) -> list[str]:
        """Return the command that runs ``argv`` on a machine.

        Args:
            cwd: working directory, by default that of this process, or the home on a machine with a private disk.
            as_user: the command sees the ID of the user instead of the ID of root.
        """
        cwd = cwd or (Path.home() if machine in self.separate else Path.cwd())
        ids = [os.geteuid(), os.getegid()] if as_user and os.geteuid() != 0 else []
        plan = {"pid": self.pids[machine.name], "cwd": str(cwd), "cpus": list(machine.cpus), "ids": ids}
        return [sys.executable, "-I", "-S", namespaces.__file__, json.dumps(plan), *map(str, argv)]

    def rsync_shell(self, machine: Machine) -> list[str]:
        """Part of being a ``Backend``."""
        return self.command(machine, ["sh", "-c", 'eval "$*"'], "/") if machine in self.separate else []

    def machine(self, name: str) -> Machine:
        """Return the machine of this name, or raise an InputError."""
        if found := [machine for machine in self.machines if machine.name == name]:
            return found[0]
        raise InputError(f"there is no {name!r}", f"There are {self.machines[0].name} to {self.machines[-1].name}.")

    def change_link(self, machine: Machine, do: str, wire: str | None = None) -> None:
        """Change the link of a machine.

        Args:
            do: ``cut`` (packets are lost silently, as with a broken switch), ``mend`` or ``wire``.
            wire: for ``wire``, the new bandwidth in both directions. ``None`` removes the limit.
        """
        plan = {"daemon": self.pid, "machine": self.pids[machine.name], "port": f"to-{machine.name}"}
        plan |= {"do": do, "rate": parse_wire(wire)}
        pipes = {"input": json.dumps(plan), "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(EMULATOR, check=False, cwd=disks.CHECKOUT, **pipes)
        if done.returncode != 0:
            raise InputError(f"cannot {do} the link of {machine.name}: {done.stderr.strip()}")

    def __exit__(self, *_exc: object) -> None:
        """Stop the machines unless they are persistent. The kernel kills all processes on them."""
        if self._daemon is not None:
            self._daemon.stdin.close()
            wait_or_kill(self._daemon, 10)
        self._daemon = None


def _remedy() -> str:
    """Return the change of this host that would allow the refused step."""
    hints = []
    for name, (bad, good) in SETTINGS_OF_LINUX.items():
        path = Path("/proc/sys", name.replace(".", "/"))
        if path.exists() and path.read_text().strip() == bad:
            hints.append(f"{name} is {bad}; an administrator can allow it with: sudo sysctl {name}={good}")
    container = "In a container, start it with --privileged (or a seccomp profile that allows unshare and mount)."
    other = "Without it, one machine with several trainers works everywhere: --machines 1 --trainers 2."
    return "\n".join([*(hints or [container]), other])
