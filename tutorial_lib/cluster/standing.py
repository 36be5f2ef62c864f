"""Emulated machines that stay: one process keeps them, and any command of their owner's may use them.

    machines start lab --starts--> keeper of "lab" (holds an EmulatedCluster, listens on a Unix socket)
    on machine-1 CMD   --asks----> keeper: the open namespaces of the machines, with which CMD is started on one
    train --on lab     --asks----> the same, and is the only job there until it ends

The socket is an abstract one, which the kernel frees with its keeper: no file can be left behind. A message is JSON.
The machines go with their keeper: when it is told to stop, after ``--ttl``, or when it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.addresses import bound, check_name, names, socket_name, user_of
from tutorial_lib.cluster.emulated import PYTHONPATH, EmulatedCluster
from tutorial_lib.cluster.environment import run_module
from tutorial_lib.cluster.spec import Machine, Traits, wait_or_kill
from tutorial_lib.errors import InputError, JobError, attempts

START_SECONDS, ANSWER_SECONDS, STOP_SECONDS, GONE_SECONDS = 60.0, 30.0, 30.0, 0.5
DEFAULT_NAME = "lab"
LARGEST_MESSAGE = 1 << 16
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_ttl(text: str) -> float:
    """``"8h"``, ``"90m"`` or ``"30s"`` to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= 30 * 86400:
        raise InputError(f"--ttl {text!r} is not a time from 1s to 30d", "Examples: 8h, 90m, 2d.")
    return seconds


@dataclass(frozen=True)
class Standing:
    """What a keeper tells about its machines.

    Attributes:
        wires: rate of each machine's cable as it was given; None: no limit.
        cut: names of the machines whose cable is cut.
        started, ends: seconds since the epoch.
        user, pid: whose keeper, and its process.
        job: who uses all machines for a job at the moment: "process 123 (train ...)"; or None.
        ssh_config: configuration file for ssh to the machines; None without ``--ssh``.
        own_disks: whether they have disks of their own.
    """

    name: str
    machines: list[str]
    addresses: list[str]
    wires: list[str | None]
    cut: list[str]
    started: float
    ends: float
    user: str
    pid: int
    job: str | None
    ssh_config: str | None
    own_disks: bool


class Line:
    """A connection to a keeper.

    Raises:
        InputError: no machines of this name are running, or somebody else answers there.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.connect(socket_name(name))
        except OSError:
            self._socket.close()
            remedy = f"Start some with: python -m tutorial_lib machines start 2 --name {name}"
            if running := names():
                remedy = f"Running: {', '.join(running)}; --name {running[0]} takes those. {remedy}"
            raise InputError(f"no machines named {name!r} are running", remedy) from None
        if (user := user_of(self._socket)) != os.getuid():
            self._socket.close()
            raise InputError(f"the machines {name!r} belong to another user (id {user})", "Choose another --name.")

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Have the keeper do something; its answer. Raises InputError with what it refuses."""
        try:
            self._socket.sendall(json.dumps({"do": do, **values}).encode())
            answer = json.loads(self._socket.recv(LARGEST_MESSAGE) or b"{}")
        except (OSError, ValueError):
            answer = {}
        if not answer or not isinstance(answer, dict):
            raise JobError(f"the keeper of the machines {self.name!r} does not answer; they are gone, or about to go")
        if "error" in answer:
            raise InputError(answer["error"], answer.get("remedy", ""))
        return answer

    def describe(self) -> Standing:
        """What is running."""
        try:
            return Standing(**self.ask("describe"))
        except TypeError:
            raise JobError(f"the keeper of the machines {self.name!r} is of another version of tutorial_lib") from None

    def namespaces(self) -> list[list[int]]:
        """Of each machine, the open files of its namespaces, in the order to enter them."""
        found = []
        for _ in range(self.ask("namespaces")["machines"]):
            _message, fds, _flags, _address = socket.recv_fds(self._socket, LARGEST_MESSAGE, 16)
            found.append(list(fds))
        return found

    def last_word(self, seconds: float) -> str | None:
        """Why the machines have gone, if they have; waits that long for the end of their keeper."""
        self._socket.settimeout(seconds)
        with contextlib.suppress(OSError, ValueError):  # TimeoutError: they are there
            message = self._socket.recv(LARGEST_MESSAGE)
            why = json.loads(message).get("gone", "") if message else "their keeper was killed"
            return f"the machines {self.name!r} ended during the job: {why}"
        return None

    def close(self) -> None:
        """End the connection, and with it the job that it stands for, if any."""
        self._socket.close()


class StandingCluster(EmulatedCluster):
    """Running machines as the cluster of a job: the only one there until the context is left; the machines stay.

    Args:
        name: that they were started with.
        count: the first so many of them; None: all.
        job: the job has the machines to itself. False: for a command beside one.

    Raises:
        InputError: there are none of this name, or another job uses them.
    """

    # /dev/shm outlives a job, so the files of a killed server there are removed.
    traits = Traits(shares_computer=True, private_shm=False)

    def __init__(self, name: str = DEFAULT_NAME, count: int | None = None, *, job: bool = True) -> None:
        with contextlib.closing(Line(name)) as line:
            found = line.describe()
        running = len(found.machines)
        if count is not None and not 1 <= count <= running:
            raise InputError(f"there are {running} machines named {name!r}, not {count}")
        super().__init__(running, own_disks=found.own_disks)
        self.machines = self.machines[:count]
        self.name, self._job = name, job
        self._keeper: Line | None = None

    @property
    def reach(self) -> dict[str, Any]:
        """Part of being a ``Cluster``."""
        return {"on": self.name}

    def __enter__(self) -> StandingCluster:
        self._keeper = Line(self.name)
        self._leaving.callback(self._keeper.close)
        try:
            if self._job:
                command = " ".join([Path(sys.argv[0]).stem.replace("__main__", "tutorial_lib"), *sys.argv[1:]])[:200]
                self._keeper.ask("use", who=f"process {os.getpid()} ({command})")
            opened = self._keeper.namespaces()
            for fd in (fd for fds in opened for fd in fds):
                self._leaving.callback(os.close, fd)
            self._fds = {machine.name: fds for machine, fds in zip(self.machines, opened, strict=False)}
        except BaseException:
            self.__exit__()
            raise
        return self

    def _order(self, verb: str, machine: Machine, rate: str | None = None) -> None:
        if self._keeper is None:
            raise RuntimeError("the machines have been left")
        self._keeper.ask(verb, machine=machine.name, rate=rate)

    def explain_end(self) -> str | None:
        """Why the machines have ended during a job; None if they have not."""
        return self._keeper and self._keeper.last_word(GONE_SECONDS)

    def __exit__(self, *_exc: object) -> None:
        """Leave the machines, which stay; they are free for the next job."""
        super().__exit__()
        self._keeper = None


def start(
    count: int,
    *,
    name: str = DEFAULT_NAME,
    wire: str | None = None,
    shm: str | None = None,
    ttl: str = "8h",
    ssh: bool = False,
    slurm: bool = False,
    own_disks: bool = False,
) -> Standing:
    """Start machines that stay, and wait until they are there.

    Args:
        count: 1 to 64.
        wire: rate of each cable, ``"1gbit"``; None: no limit.
        shm: size of each machine's /dev/shm, ``"2GB"``; None: half of the memory.
        ttl: how long they stay, ``"8h"``, if nobody stops them.
        ssh: with an ssh server on each.
        slurm: with a Slurm of their own; machine 0 has the controller.
        own_disks: they share no folder, see ``disks``.

    Raises:
        InputError: wrong arguments, or machines of this name are running. EmulationUnavailable: the host forbids it.
    """
    shm_bytes = None
    if shm is not None:
        from tutorial_lib.partition.memory import parse_memory  # with torch: only for who needs it

        shm_bytes = parse_memory(shm)
    settings = {
        **{"name": check_name(name), "count": count, "wire": wire, "shm": shm_bytes, "ttl": parse_ttl(ttl)},
        **{"ssh": ssh, "slurm": slurm, "own_disks": own_disks},
    }
    if slurm and own_disks:
        raise InputError(
            "--slurm and --own-disks: the jobs of this Slurm need shared folders", "Leave one of them out."
        )
    if name in bound():
        with contextlib.closing(Line(name)) as line:
            found = line.describe()
        raise InputError(
            f"machines named {name!r} are running: {len(found.machines)}, started by {found.user} at "
            f"{time.strftime('%H:%M', time.localtime(found.started))} (process {found.pid})",
            f"Use them (--on {name}), stop them (python -m tutorial_lib machines stop {name}), or choose another name.",
        )
    keeper = subprocess.Popen(
        [*run_module(sys.executable, "tutorial_lib.cluster.keeper"), json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # ours may be a pipe, and whoever reads it would wait for the machines' end
        start_new_session=True,  # neither Ctrl-C nor the end of this command is meant for it
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    assert keeper.stdout is not None
    answer: dict[str, Any] = {}
    with selectors.DefaultSelector() as ready, keeper.stdout:
        ready.register(keeper.stdout, selectors.EVENT_READ)
        try:
            for left in attempts(f"the machines {name!r} to be set up", START_SECONDS, pause=0):
                if ready.select(min(left, 1.0)):
                    answer = json.loads(keeper.stdout.readline() or b"{}")
                    break
        except BaseException:
            keeper.terminate()  # it removes its folders; a kill would leave them
            wait_or_kill(keeper, STOP_SECONDS)
            raise
    if "error" in answer or not answer:
        keeper.wait(timeout=STOP_SECONDS)
        raise InputError(answer.get("error", "the keeper of the machines ended at once"), answer.get("remedy", ""))
    return Standing(**answer)


def stop(name: str = DEFAULT_NAME) -> None:
    """Switch machines off; everything that runs on them is killed. Raises InputError when there are none."""
    with contextlib.closing(Line(name)) as line:
        line.ask("stop")
    for _left in attempts(f"the machines {name!r} to be switched off", STOP_SECONDS):
        if name not in bound():  # the keeper closes its socket last
            return
