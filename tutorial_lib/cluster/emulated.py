"""Emulated machines: network hosts on this computer, without root and without docker.

Each machine has its own IPv4 address, host name, process list and /dev/shm (on one, two machines would overwrite each
other's data without a word, see ``shm``), and a network cable of a chosen speed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.cluster import disks, namespaces
from tutorial_lib.cluster.plan import run_module
from tutorial_lib.cluster.spec import Machine, wait_or_kill
from tutorial_lib.errors import InputError, WaitedTooLong, attempts

SUBNET = "10.77.0"
MAX_MACHINES = 64
START_SECONDS = 30
SLOWEST_WIRE, FASTEST_WIRE = 125_000, 1_250_000_000  # bytes per second
MASTER_PORT = 29500  # torchrun's own choice; a machine of its own has it free
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def with_checkout(python_path: str | None) -> str:
    """``PYTHONPATH`` with which another process finds this package."""
    return os.pathsep.join(filter(None, [str(disks.CHECKOUT), python_path]))


PYTHONPATH = with_checkout(os.environ.get("PYTHONPATH"))


class EmulationUnavailable(InputError):
    """This host does not let us make emulated machines; the message names the step that was refused."""


def parse_wire(text: str | None, *, shaped: bool = True) -> int | None:
    """``"200mbit"`` or ``"1gbit"`` to bytes per second; None and ``"unshaped"`` mean no limit.

    ``shaped``: it is made here; somebody's real one may be faster.
    """
    if text is None or text == "unshaped":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text.strip().lower())
    rate = int(min(float(match[1]), 1e12) * _UNITS[match[2]] / 8) if match else 0
    if rate < SLOWEST_WIRE or (shaped and rate > FASTEST_WIRE):
        most = "to 10gbit" if shaped else "upwards"
        raise InputError(f"--wire {text!r} is not a rate from 1mbit {most}", "Examples: 1gbit, 200mbit, unshaped.")
    return rate


def divide_cpus(count: int) -> list[tuple[int, ...]]:
    """Give each of ``count`` machines its own CPUs; with fewer CPUs than machines they share, evenly."""
    cpus = sorted(os.sched_getaffinity(0))
    if count >= len(cpus):
        return [(cpus[k % len(cpus)],) for k in range(count)]
    return [tuple(cpus[k * len(cpus) // count : (k + 1) * len(cpus) // count]) for k in range(count)]


class EmulatedCluster:
    """``with EmulatedCluster(2, wire="1gbit") as cluster: cluster.popen(cluster.machines[0], ["hostname"])``.

    Args:
        count: number of machines, 1 to 64.
        wire: rate of each machine's cable, in both directions (``"1gbit"``, ``"200mbit"``); None for no limit.
        shm_bytes: size of each machine's /dev/shm; None takes the kernel's default (half of the memory).
        own_disks: each machine has a private, empty home, /tmp, data folder and run folder, see ``disks``. Commands
            start in the home, or in ``/`` if ``popen`` starts them.
        private: other folders that are private then.

    Attributes:
        separate: the machines with such disks.

    Raises:
        InputError: bad arguments. EmulationUnavailable: the host forbids it.
    """

    private_shm = True
    reach: dict[str, Any] | None = None

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
        self.bytes_per_second = parse_wire(wire)
        self.master_port = MASTER_PORT
        self.shm_bytes = shm_bytes
        self.machines = [
            Machine(name=f"machine-{k}", address=f"{SUBNET}.{k + 1}", interface="eth0", cpus=cpus)
            for k, cpus in enumerate(divide_cpus(count))
        ]
        self.separate = list(self.machines) if own_disks else []
        self._private, self._disks = list(private), Path()
        self._fds: dict[str, list[int]] = {}
        self._line: socket.socket | None = None
        self._leaving = contextlib.ExitStack()

    @property
    def copy_to(self) -> str | None:
        """Part of being a ``Cluster``."""
        return disks.COPY_TO if self.separate else None

    def on_disk(self, machine: Machine, path: Path | str) -> Path:
        """Where this computer has a private folder of a machine, or a file in one."""
        return Path(f"{self._disks}/{machine.name}{path}")

    def __enter__(self) -> EmulatedCluster:
        if sys.platform != "linux":
            raise EmulationUnavailable("emulated machines need Linux", "Use --machines 1, or WSL2, or a Linux host.")
        # Root needs no user namespace, and keeps its rights on other people's files without one.
        # A container's root may lack the right to unshare, but still be allowed a user namespace.
        errors = []
        for user_namespace in [False, True] if os.geteuid() == 0 else [True]:
            try:
                self._start_switch(user_namespace)
                return self
            except BaseException as error:
                self.__exit__()
                if not isinstance(error, OSError):
                    raise
                errors.append(error)
        message = f"this host does not allow emulated machines: {errors[0].strerror}"
        raise EmulationUnavailable(message, _remedy(errors[0])) from None

    def _start_switch(self, user_namespace: bool) -> None:
        if self.separate:
            self._disks = disks.new_disks()
            self._leaving.callback(shutil.rmtree, self._disks, ignore_errors=True)
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message is read as a whole
        with theirs:
            switch = subprocess.Popen(
                run_module(sys.executable, "tutorial_lib.cluster._switch"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the coordinator to handle
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
            )
        plan = {
            "machines": [
                {"name": m.name, "address": m.address, "disk": m in self.separate and str(self.on_disk(m, ""))}
                for m in self.machines
            ],
            "disks": str(self._disks) if self.separate else None,
            "layers": disks.layers(self._private) if self.separate else [],
            "bytes_per_second": self.bytes_per_second,
            "shm_bytes": self.shm_bytes,
            "user_namespace": user_namespace,
        }
        self._leaving.callback(wait_or_kill, switch, 10)  # its child is pid 1 of the emulation and dies with it
        self._leaving.callback(line.close)
        self._line = line
        line.sendall(json.dumps(plan).encode())
        while len(self._fds) < len(self.machines):
            message, fds = self._receive("the emulated machines to be set up")
            self._fds[self.machines[int(message)].name] = fds
            for fd in fds:
                self._leaving.callback(os.close, fd)

    def _receive(self, what: str) -> tuple[bytes, list[int]]:
        """Return the next message of the process behind the machines, and the open files that came with it.

        Raises:
            OSError: the process reports an error, or it ended without a message.
        """
        assert self._line is not None
        message, fds = b"", []
        try:
            for left in attempts(what, START_SECONDS, pause=0):
                self._line.settimeout(max(0.01, min(left, 1.0)))
                with contextlib.suppress(TimeoutError):
                    message, fds, _, _ = socket.recv_fds(self._line, 65536, 8)
                    break
        except WaitedTooLong as error:
            raise OSError(errno.ETIMEDOUT, error.message) from None
        if not message:
            raise OSError(errno.ECHILD, "the process that makes the emulated machines has ended")
        if message.startswith(b"{"):
            report = json.loads(message)
            raise OSError(report["errno"], report["step"])
        return message, list(fds)

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on an emulated machine; the arguments are those of ``subprocess.Popen``."""
        cwd = kwargs.pop("cwd", None)
        if machine in self.separate:
            cwd = cwd or "/"  # as over ssh: Python imports from where it starts
            env = os.environ if kwargs.get("env") is None else kwargs["env"]
            kwargs["env"] = {**env, "PYTHONPATH": with_checkout(env.get("PYTHONPATH"))}
        command, fds = self.command(machine, argv, cwd)
        kwargs.setdefault("start_new_session", True)  # Ctrl-C in the terminal is for the coordinator to handle
        return subprocess.Popen(command, pass_fds=[*fds, *kwargs.pop("pass_fds", ())], **kwargs)

    def command(
        self,
        machine: Machine,
        argv: Sequence[str],
        cwd: Path | str | None = None,
        *,
        as_user: bool = False,
    ) -> tuple[list[str], list[int]]:
        """What runs a command on a machine, and the open files that it needs.

        Args:
            cwd: working directory; None: the one of this process, or the home on a machine with its own disk.
            as_user: it sees the user's own number, where it would see that of root (and miss what a root can do).
        """
        fds = self._fds[machine.name]
        cwd = cwd or (Path.home() if machine in self.separate else Path.cwd())
        plan = {"fds": fds, "cwd": str(cwd), "cpus": list(machine.cpus), "argv": [*map(str, argv)]}
        ids = [os.geteuid(), os.getegid()] if as_user and os.geteuid() != 0 else []
        plan["ids"] = ids
        return [sys.executable, "-I", "-S", namespaces.__file__, json.dumps(plan)], fds

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Part of being a ``Cluster``."""
        return self.command(machine, ["sh", "-c", 'eval "$*"'], "/") if machine in self.separate else None

    def machine(self, name: str) -> Machine:
        """The machine of this name. Raises InputError when there is none."""
        if found := [machine for machine in self.machines if machine.name == name]:
            return found[0]
        raise InputError(f"there is no {name!r}", f"There are {self.machines[0].name} to {self.machines[-1].name}.")

    def namespaces(self) -> list[list[int]]:
        """Of each machine, the open files of its namespaces, in the order to enter them."""
        return [self._fds[machine.name] for machine in self.machines]

    def life_line(self) -> socket.socket:
        """Becomes readable when the machines have gone without an order, killed by the kernel or by somebody."""
        assert self._line is not None
        return self._line

    def cut(self, machine: Machine) -> None:
        """Cut the machine's cable: packets vanish without a word, as with a broken switch on the way."""
        self._order("cut", machine)

    def mend(self, machine: Machine) -> None:
        """Undo ``cut``."""
        self._order("mend", machine)

    def set_wire(self, machine: Machine, wire: str | None) -> None:
        """Give the machine a cable of another rate, in both directions; None: without a limit."""
        self._order("wire", machine, rate=wire)

    def _order(self, verb: str, machine: Machine, rate: str | None = None) -> None:
        if self._line is None:
            raise RuntimeError("the emulated machines are switched off")
        order = {"do": verb, "machine": self.machines.index(machine), "bytes_per_second": parse_wire(rate)}
        self._line.sendall(json.dumps(order).encode())
        self._receive("the process that holds the cables")

    def __exit__(self, *_exc: object) -> None:
        """Switch the machines off: everything that runs on them is killed by the kernel."""
        self._leaving.close()
        self._fds, self._line = {}, None


def _remedy(error: OSError) -> str:
    """What to change on this host, from what the kernel refused."""
    hints = []
    for name, good in [
        ("kernel.unprivileged_userns_clone", 1),
        ("kernel.apparmor_restrict_unprivileged_userns", 0),
        ("user.max_user_namespaces", 15000),
    ]:
        with contextlib.suppress(OSError, ValueError):
            value = int(Path("/proc/sys", name.replace(".", "/")).read_text())
            if value != good if good < 2 else value == 0:
                hints.append(f"{name} is {value}; an administrator can allow it with: sudo sysctl {name}={good}")
    if not hints and error.errno in (errno.EPERM, errno.EACCES):
        hints.append("In a container, start it with --privileged (or a seccomp profile that allows unshare and mount).")
    hints.append("Without it, one machine with several trainers works everywhere: --machines 1 --trainers 2.")
    return "\n".join(hints)
