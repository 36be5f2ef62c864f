"""Emulated machines, which are network hosts on this computer, without root and without docker.

Each machine has a separate IPv4 address, host name, process list, network cable and /dev/shm. (Machines with a common
/dev/shm would silently overwrite each other's data, see ``shm``.)
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.launcher.backends import Backend, Traits, disks, namespaces, wait_or_kill
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.jobspec import Machine

SUBNET = "10.77.0"
MAX_MACHINES = 64
MESSAGE_BYTES = 1 << 20
ANSWER_SECONDS = 30.0
SLOWEST_WIRE, FASTEST_WIRE = 125_000, 1_250_000_000  # bytes per second
MASTER_PORT = 29500  # the default of torchrun. Each emulated machine has all ports free
SETTINGS_OF_LINUX = [  # name, a value that forbids user namespaces, and a value that allows them
    ("kernel.unprivileged_userns_clone", "0", 1),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", 0),
    ("user.max_user_namespaces", "0", 15000),
]
AnyCluster = TypeVar("AnyCluster", bound="EmulatedBackend")
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

    def ask(self, do: str, files: Sequence[int] = (), /, **values: Any) -> dict[str, Any]:
        """Send a request and return the answer. The key ``files`` of the answer has the received open files.

        Raises:
            InputError: the daemon refuses the request. OSError: the kernel refuses a step of the start.
            JobError: the daemon does not answer.
        """
        try:
            self.socket.settimeout(ANSWER_SECONDS)
            socket.send_fds(self.socket, [json.dumps({"do": do, **values}).encode()], list(files))
            message, opened, _flags, _address = socket.recv_fds(self.socket, MESSAGE_BYTES, 16)
        except TimeoutError:
            raise JobError(f"{self.label} did not answer within {ANSWER_SECONDS:g} s ({do})") from None
        except OSError:
            message, opened = b"", []
        if not message:
            raise JobError(f"{self.label} do not answer; they are gone, or about to go")
        answer = json.loads(message)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        if "error" in answer:
            raise InputError(answer["error"], answer["remedy"])
        return {**answer, "files": list(opened)}

    def close(self) -> None:
        """End the connection and its reservation of the machines for a job."""
        self.socket.close()


class EmulatedBackend(Backend):
    """``with EmulatedBackend(2, wire="1gbit") as cluster: cluster.popen(cluster.machines[0], ["hostname"])``.

    Args:
        count: number of machines, 1 to 64.
        wire: rate of each machine's cable in both directions (``"1gbit"``, ``"200mbit"``), by default without a limit.
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

    master_port = MASTER_PORT

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
        self.traits = Traits(True, private_shm=True, copy_to=disks.COPY_TO if own_disks else None)
        self.folder = Path()
        self._daemon: subprocess.Popen | None = None
        self._line: Connection | None = None
        self._fds: dict[str, list[int]] = {}

    def on_disk(self, machine: Machine, path: Path | str) -> Path:
        """Return the path on this computer of a private folder of a machine, or of a file in one."""
        return Path(f"{self.folder}/{machine.name}{path}")

    def __enter__(self: AnyCluster) -> AnyCluster:
        if sys.platform != "linux":
            raise EmulationUnavailable("emulated machines need Linux", "Use --machines 1, or WSL2, or a Linux host.")
        # Root needs no user namespace and keeps its rights on files of other users without one. The root of a
        # container may lack the right to unshare, but can often create a user namespace.
        errors = []
        for user_namespace in [False, True] if os.geteuid() == 0 else [True]:
            try:
                self._start(user_namespace=user_namespace)
                for machine in self.machines:
                    self._fds[machine.name] = self._ask("open", machine)["files"]
                return self
            except BaseException as error:
                self.__exit__()
                if not isinstance(error, OSError):
                    raise
                errors.append(error)
        message = f"this host does not allow emulated machines: {errors[0].strerror or errors[0]}"
        raise EmulationUnavailable(message, _remedy(errors[0])) from None

    def _start(self, *, user_namespace: bool) -> None:
        """Start the daemon and have it create the machines."""
        self.folder = disks.create_folder()
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message is read as a whole
        self._line = Connection(line, "the emulated machines")
        with theirs:
            self._daemon = subprocess.Popen(
                run_module("tutorial_lib.launcher.backends.emulator"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a reader of our pipe would wait until the daemon ends
                start_new_session=True,  # Ctrl-C in the terminal is for the coordinator to handle
                cwd=disks.CHECKOUT,
            )
        machines = [
            {"name": m.name, "address": m.address, "wire": self.wire, "has_disk": m in self.separate}
            for m in self.machines
        ]
        layers = disks.list_layers(self.private) if self.separate else []
        plan = {"machines": machines, "folder": str(self.folder), "layers": layers, "shm_bytes": self.shm_bytes}
        self._line.ask("start", user_namespace=user_namespace, **plan)

    def stay(self, listener: socket.socket, **description: Any) -> None:
        """Make the machines persistent. From now on, their daemon answers on ``listener``, see ``standing``."""
        assert self._line is not None
        self._line.ask("stay", [listener.fileno()], **description)
        self._daemon = None

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on an emulated machine. The arguments are those of ``subprocess.Popen``."""
        cwd = kwargs.pop("cwd", None)
        if machine in self.separate:
            cwd = cwd or "/"  # as over ssh, because Python imports from its working directory
            env = os.environ if kwargs.get("env") is None else kwargs["env"]
            kwargs["env"] = {**env, "PYTHONPATH": disks.python_path(env)}
        command, fds = self.command(machine, argv, cwd)
        kwargs.setdefault("start_new_session", True)  # Ctrl-C in the terminal is for the coordinator to handle
        return subprocess.Popen(command, pass_fds=[*fds, *kwargs.pop("pass_fds", ())], **kwargs)

    def command(
        self, machine: Machine, argv: Sequence[str], cwd: Path | str | None = None, *, as_user: bool = False
    ) -> tuple[list[str], list[int]]:
        """Return the command that runs ``argv`` on a machine, and the open files that this command needs.

        Args:
            cwd: working directory, by default that of this process, or the home on a machine with a private disk.
            as_user: the command sees the ID of the user instead of the ID of root.
        """
        fds = self._fds[machine.name]
        cwd = cwd or (Path.home() if machine in self.separate else Path.cwd())
        ids = [os.geteuid(), os.getegid()] if as_user and os.geteuid() != 0 else []
        plan = {"fds": fds, "cwd": str(cwd), "cpus": list(machine.cpus), "argv": [*map(str, argv)], "ids": ids}
        return [sys.executable, "-I", "-S", namespaces.__file__, json.dumps(plan)], fds

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Part of being a ``Cluster``."""
        return self.command(machine, ["sh", "-c", 'eval "$*"'], "/") if machine in self.separate else None

    def machine(self, name: str) -> Machine:
        """Return the machine of this name, or raise an InputError."""
        if found := [machine for machine in self.machines if machine.name == name]:
            return found[0]
        raise InputError(f"there is no {name!r}", f"There are {self.machines[0].name} to {self.machines[-1].name}.")

    def cut(self, machine: Machine) -> None:
        """Cut the machine's cable. Packets are lost silently, as with a broken switch."""
        self._ask("cut", machine)

    def mend(self, machine: Machine) -> None:
        """Undo ``cut``."""
        self._ask("mend", machine)

    def set_wire(self, machine: Machine, wire: str | None) -> None:
        """Change the rate of the machine's cable in both directions. ``None`` removes the limit."""
        self._ask("wire", machine, rate=wire)

    def _ask(self, do: str, machine: Machine, **values: str | None) -> dict[str, Any]:
        if self._line is None:
            raise RuntimeError("the emulated machines are switched off")
        return self._line.ask(do, machine=machine.name, **values)

    def __exit__(self, *_exc: object) -> None:
        """Stop the machines unless they are persistent. The kernel kills all processes on them."""
        for fd in (fd for fds in self._fds.values() for fd in fds):
            os.close(fd)
        if self._line is not None:
            self._line.close()
        if self._daemon is not None:
            wait_or_kill(self._daemon, 10)
        self._fds, self._line, self._daemon = {}, None, None


def _remedy(error: OSError) -> str:
    """Return the change of this host that would allow the refused step."""
    hints = []
    for name, bad, good in SETTINGS_OF_LINUX:
        path = Path("/proc/sys", name.replace(".", "/"))
        if path.exists() and path.read_text().strip() == bad:
            hints.append(f"{name} is {bad}; an administrator can allow it with: sudo sysctl {name}={good}")
    if not hints and error.errno in (errno.EPERM, errno.EACCES):
        hints.append("In a container, start it with --privileged (or a seccomp profile that allows unshare and mount).")
    hints.append("Without it, one machine with several trainers works everywhere: --machines 1 --trainers 2.")
    return "\n".join(hints)
