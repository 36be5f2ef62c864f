"""Emulated machines, which are network hosts on this computer, without root and without docker.

Each machine has a separate IPv4 address, host name, process list, network link and /dev/shm. (Machines with a common
/dev/shm would silently overwrite each other's data, see ``shm``.)
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.launcher.backends import BackendDefaults, Traits, disks, namespaces, wait_or_kill
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.jobspec import Machine

SUBNET = "10.77.0"
MAX_MACHINES = 64
MESSAGE_BYTES = 1 << 20
ANSWER_SECONDS = 30.0
SLOWEST_WIRE, FASTEST_WIRE = 125_000, 1_250_000_000  # bytes per second
SETTINGS_OF_LINUX = {  # name: a value that forbids user namespaces, and a value that allows them
    "kernel.unprivileged_userns_clone": ("0", 1),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", 0),
    "user.max_user_namespaces": ("0", 15000),
}
AnyBackend = TypeVar("AnyBackend", bound="EmulatedBackend")
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class EmulationUnavailable(InputError):
    """This host does not allow emulated machines. The message names the step that the kernel refused."""


def parse_wire(text: str | None, *, shaped: bool = True) -> int | None:
    """Convert ``"200mbit"`` or ``"1gbit"`` to bytes per second. ``None`` and ``"unshaped"`` mean no limit.

    Args:
        shaped: the rate is for an emulated link. Real networks can be faster than the largest emulated rate.
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
    """Divide the CPUs of this process among machines. If there are fewer CPUs than machines, machines share them."""
    cpus = sorted(os.sched_getaffinity(0))
    if count >= len(cpus):
        return [(cpus[k % len(cpus)],) for k in range(count)]
    return [tuple(cpus[k * len(cpus) // count : (k + 1) * len(cpus) // count]) for k in range(count)]


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group ID of the peer of a Unix socket."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))


class Connection:
    """A connection to the daemon of emulated machines, see ``emulator``. Messages call the machines ``label``."""

    def __init__(self, connection: socket.socket, label: str) -> None:
        self.socket, self.label = connection, label
        self.socket.settimeout(ANSWER_SECONDS)

    def ask(self, do: str, files: Sequence[int] = (), /, **values: Any) -> dict[str, Any]:
        """Send a request and return the answer. ``files`` are open files to pass on.

        Raises:
            InputError: the daemon or the kernel refuses the request. JobError: the daemon does not answer.
        """
        try:
            socket.send_fds(self.socket, [json.dumps({"do": do, **values}).encode()], list(files))
            message = self.socket.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            raise JobError(f"{self.label} do not answer; they are gone, or about to go")
        answer = json.loads(message)
        if "error" in answer:
            raise InputError(answer["error"], answer["remedy"])
        return answer

    def close(self) -> None:
        """End the connection and its reservation of the machines for a job."""
        self.socket.close()


class EmulatedBackend(BackendDefaults):
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
    _connection: Connection | None = None
    _daemon: subprocess.Popen | None = None

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
        self.traits = Traits(shares_computer=True, private_shm=True)
        self.copy_to = disks.COPY_TO if own_disks else None
        self.folder = Path()

    def on_disk(self, machine: Machine, path: Path | str) -> Path:
        """Return the path on this computer of a private folder of a machine, or of a file in one."""
        return Path(f"{self.folder}/{machine.name}{path}")

    def __enter__(self: AnyBackend) -> AnyBackend:
        # Root needs no user namespace and keeps its rights on files of other users without one. The root of a
        # container may lack the right to unshare, but can often create a user namespace.
        refusals = []
        for user_namespace in [False, True] if os.geteuid() == 0 else [True]:
            try:
                self._start(user_namespace=user_namespace)
                return self
            except BaseException as error:
                self.__exit__()
                if not isinstance(error, InputError):
                    raise
                refusals.append(error.message)
        raise EmulationUnavailable(f"this host does not allow emulated machines: {refusals[0]}", _remedy())

    def _start(self, *, user_namespace: bool) -> None:
        """Start the daemon, and wait until it has created the machines."""
        self.folder = disks.create_folder()
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message is read as a whole
        self._connection = Connection(line, "the emulated machines")
        plan = {
            "machines": [
                {"name": m.name, "address": m.address, "wire": self.wire, "has_disk": m in self.separate}
                for m in self.machines
            ],
            "folder": str(self.folder),
            "layers": disks.list_layers(self.private) if self.separate else [],
            "shm_bytes": self.shm_bytes,
            "user_namespace": user_namespace,
        }
        with theirs:
            self._daemon = subprocess.Popen(
                [*run_module(sys.executable, "tutorial_lib.launcher.backends.emulator"), json.dumps(plan)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a reader of our pipe would wait until the daemon ends
                start_new_session=True,  # Ctrl-C in the terminal is for the coordinator to handle
                cwd=disks.CHECKOUT,
            )
        self.pids = self._connection.ask("describe")["pids"]

    def stay(self, listener: socket.socket, **description: Any) -> None:
        """Make the machines persistent. From now on, their daemon answers on ``listener``, see ``persistent``."""
        assert self._connection is not None
        self._connection.ask("stay", [listener.fileno()], **description)
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
        names = [each.name for each in self.machines]
        plan = {"pid": self.pids[names.index(machine.name)], "cwd": str(cwd), "cpus": list(machine.cpus), "ids": ids}
        return [sys.executable, "-I", "-S", namespaces.__file__, json.dumps(plan), *map(str, argv)]

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Part of being a ``Backend``."""
        return (self.command(machine, ["sh", "-c", 'eval "$*"'], "/"), []) if machine in self.separate else None

    def machine(self, name: str) -> Machine:
        """Return the machine of this name, or raise an InputError."""
        if found := [machine for machine in self.machines if machine.name == name]:
            return found[0]
        raise InputError(f"there is no {name!r}", f"There are {self.machines[0].name} to {self.machines[-1].name}.")

    def cut(self, machine: Machine) -> None:
        """Cut the machine's link. Packets are lost silently, as with a broken switch."""
        self._change_link("cut", machine)

    def mend(self, machine: Machine) -> None:
        """Undo ``cut``."""
        self._change_link("mend", machine)

    def set_wire(self, machine: Machine, wire: str | None) -> None:
        """Change the bandwidth of the machine's link in both directions. ``None`` removes the limit."""
        self._change_link("wire", machine, rate=wire)

    def _change_link(self, do: str, machine: Machine, **values: str | None) -> None:
        assert self._connection is not None
        self._connection.ask(do, machine=machine.name, **values)

    def __exit__(self, *_exc: object) -> None:
        """Stop the machines unless they are persistent. The kernel kills all processes on them."""
        if self._connection is not None:
            self._connection.close()
        if self._daemon is not None:
            wait_or_kill(self._daemon, 10)
        self._connection = self._daemon = None


def _remedy() -> str:
    """Return the change of this host that would allow the refused step."""
    hints = []
    for name, (bad, good) in SETTINGS_OF_LINUX.items():
        path = Path("/proc/sys", name.replace(".", "/"))
        if path.exists() and path.read_text().strip() == bad:
            hints.append(f"{name} is {bad}; an administrator can allow it with: sudo sysctl {name}={good}")
    if not hints:
        hints.append("In a container, start it with --privileged (or a seccomp profile that allows unshare and mount).")
    return "\n".join(
        [*hints, "Without it, one machine with several trainers works everywhere: --machines 1 --trainers 2."]
    )
