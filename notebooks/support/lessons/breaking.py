"""Lesson 11: what the reader uses to break a job, to see what is left, and to show a report."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.lessons import attempts
from support.lessons.lifelines import processes_of
from support.lessons.machines import ask, plan_in, require_machines  # noqa: F401  the last for the notebook
from tutorial_lib.cluster.coordinator import JobFailed
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.preflight import PreflightFailed, require
from tutorial_lib.cluster.shm import leftovers
from tutorial_lib.cluster.spec import Machine, read_ip_config
from tutorial_lib.errors import TutorialError
from tutorial_lib.job.layout import Layout
from tutorial_lib.partition import Partition

GONE_SECONDS = 5.0

# ---- machines that can be broken


@dataclass(frozen=True)
class BreakableLayout(Layout):
    """Two emulated machines that stay within reach while a job runs: ``layout.cluster().cut(machine)``.

    Attributes:
        shm_bytes: size of each machine's /dev/shm; None takes the kernel's default.
    """

    shm_bytes: int | None = None
    made: list[EmulatedCluster] = field(default_factory=list, compare=False, repr=False)

    def cluster(self) -> EmulatedCluster:
        """The same machines each time."""
        if not self.made:
            self.made.append(EmulatedCluster(self.emulate or 2, wire=self.wire, shm_bytes=self.shm_bytes))
        return self.made[0]


def fill_shm(cluster: EmulatedCluster, machine: Machine, leave: int) -> None:
    """Something else takes the shared memory of a machine, all but some bytes: a file that belongs to no job."""
    code = (
        "import os, sys; s = os.statvfs('/dev/shm'); n = s.f_bavail * s.f_frsize - int(sys.argv[1]);"
        "f = os.open('/dev/shm/not-ours', os.O_CREAT | os.O_WRONLY); os.posix_fallocate(f, 0, n)"
    )
    if cluster.popen(machine, [sys.executable, "-I", "-S", "-c", code, str(leave)]).wait(timeout=20):
        raise RuntimeError(f"could not fill /dev/shm of {machine.name}")


def buggy_job(cluster: EmulatedCluster, partition: Partition, folder: Path) -> JobPlan:
    """A job of ``lessons/hanging.py`` on machines that are switched on, with its logs in ``folder``."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "support.lessons.hanging", partition.graph_name, str(folder / "done.json")]
    return plan_in(folder, cluster.machines, partition, command, master_port=cluster.master_port, log_dir=str(folder))


# ---- what is said


REPORTS = (
    (r"/(?!dev/)[\w.-]+/\S*/(?=[^/\s]+)", ".../"),
    (r"\.py:\d+", ".py"),
    (r"for \d+ s: it is down", "for N s: it is down"),
    (r"(\d+\.\d+\.\d+\.\d+):\d{5}\b(?!\d)", r"\1:PORT"),
    (r"[Cc]lient (\(\d+\)|\[\d+\])", "client K"),
)


def plain(text: str) -> str:
    """A message without what differs from run to run: folders, line numbers, seconds, ports and numbers of clients."""
    return attempts.plain(text, REPORTS)


def failure_of(call: Callable[[], Any]) -> TutorialError:
    """The failure that a call ends with, ``job.watch`` for one.

    Raises:
        RuntimeError: it ended well.
    """
    try:
        call()
    except TutorialError as error:
        return error
    raise RuntimeError("no failure: the job ended well")


def show(error: TutorialError, lines: int = 1) -> None:
    """Print what a report says: who, where, the cause, and the end of the log; or what to do before a start."""
    if isinstance(error, JobFailed):
        print(f"machine: {error.machine}   role: {error.role}   rank: {error.rank}")
        print("message:", plain(error.message))
        print("log:    ", f"{error.log.parent.name}/{error.log.name}")
        for line in error.tail[-lines:]:
            print("        |", plain(line))
        return
    print("not started:" if isinstance(error, PreflightFailed) else "refused:", plain(error.message))
    for line in plain(error.remedy).splitlines():
        print("   ", line)


def left_behind(run: Path) -> dict[str, list[str]]:
    """What an ended job has left on this computer: processes, DGL's files of dead jobs in /dev/shm, network cards."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        left = {
            "processes": [str(process) for process in processes_of(run)],
            "shared memory": [name for job in leftovers().dead for name in job.files],
            "network cards": sorted(name for name in psutil.net_if_addrs() if re.match(r"br0|port\d", name)),
        }
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def look_inside(cluster: EmulatedCluster) -> dict[str, dict[str, Any]]:
    """What is on each machine that is switched on, as the machine itself sees it; see ``lessons.look_around``."""
    command = [sys.executable, "-m", "support.lessons.look_around", "inside"]
    found = ask(cluster, cluster.machines, command)
    return {machine.name: json.loads(text) for machine, text in zip(cluster.machines, found, strict=True)}


# ---- before a start


def try_addresses(cluster: EmulatedCluster, partition: Partition, lines: Sequence[str]) -> list[Any]:
    """The preflight of a job whose ``ip_config.txt`` has these lines; starts nothing.

    Raises:
        InputError: the file cannot be read as one. PreflightFailed: what the machines say about it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ip_config.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        machines = read_ip_config(path)
        more = {"master_port": cluster.master_port, "log_dir": folder}
        return require(cluster, plan_in(Path(folder), machines, partition, [sys.executable], **more))
