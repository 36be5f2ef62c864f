"""The processes of a job on a machine: who they are, how they do, and where each stands (its stacks, that in one line).

`hook/sitecustomize.py` has each process make a file ``.processes/ROLE-INDEX-PID-PARENT-STARTED``, and write its stacks
there when signal 63 arrives. The signal is answered in C, so also by a process that waits in a collective or for a DGL
server.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import math
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.cluster.logs import WORKERS, end_of
from tutorial_lib.files import wait_until_written

DUMP_SIGNAL = signal.SIGRTMAX - 1
DUMP_SECONDS = 3.0
FOLDER = ".processes"
FINISH = f"{FOLDER}/finish"  # its presence tells the trainers to stop in the middle of an epoch, see `trainer.stopping`
STARTED = 19  # place in ``stat_of``
MEMORY_LOOKS = 5  # a kill that was counted more than ten seconds before a death was not its cause
ZOMBIE_SECONDS = 1.0  # a parent that ends its samplers on purpose collects them within this time
MOST_BYTES = 1 << 18  # of one process's stacks; the main thread's come last
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|tutorial_lib/cluster/hook")


@dataclass(frozen=True)
class Member:
    """A process of the job that has told who it is; ``index`` is the local rank, for a sampler that of its trainer.

    ``started`` is when, as the kernel counts (field 22 of /proc/PID/stat): with the number it names one process only.
    """

    role: str
    index: int
    pid: int
    parent: int
    started: int
    dump: Path  # of its stacks

    def stat(self) -> list[str] | None:
        """As ``stat_of``; None also when another process has the number by now."""
        fields = stat_of(self.pid)
        return fields if fields and int(fields[STARTED]) == self.started else None

    def handles(self, number: int) -> bool:
        """Whether this very process has a handler for a signal, which would end it otherwise."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            handled = re.search(r"^SigCgt:\s*(\w+)", status, flags=re.MULTILINE)
            return bool(handled and int(handled[1], 16) >> (number - 1) & 1 and self.stat())
        return False


@dataclass(frozen=True)
class Stack:
    """A process; ``state`` is the kernel's letter (T: stopped by a signal, D: waits for a disk), ``text`` the dump."""

    role: str
    index: int
    pid: int
    state: str
    text: str

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it (SIGSTOP, or a debugger)."""
        return self.state in ("T", "t")

    def where(self) -> str:
        """One line: the innermost call, and the line of the script that led there."""
        waits = "waits for a disk or a network file system, " if self.state == "D" else ""
        prefix = "stopped by a signal (SIGSTOP?), " if self.stopped else waits
        frames = main_thread(self.text)
        if not frames:
            return prefix + "wrote no Python stack"
        path, line, function = frames[0]
        text = f"{prefix}in {function} ({Path(path).name}:{line})"
        own = next((frame for frame in frames if not _LIBRARY.search(frame[0])), None)
        if own and own != frames[0]:
            text += f", called from {Path(own[0]).name}:{own[1]} in {own[2]}"
        return text


def main_thread(text: str) -> list[tuple[str, int, str]]:
    """(file, line, function) of a dump's main thread, innermost first; faulthandler writes that thread last."""
    section = re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)[-1]
    return [(m[1], int(m[2]), m[3]) for m in _FRAME.finditer(section)]


def members(folder: Path) -> list[Member]:
    """The processes of a machine, by its log folder, that have told who they are, also those that have ended."""
    found = []
    for path in sorted((folder / FOLDER).glob("*-*-*-*-*")):
        role, *numbers = path.name.split("-")
        found.append(Member(role, *map(int, numbers), dump=path))
    return found


def stat_of(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return None


def collect(folder: Path) -> list[Stack]:
    """Ask every living process of a machine for its stacks and read them.

    A stopped process answers once it goes on, so it is continued; the job is about to be ended anyway.
    """
    asked: list[tuple[Member, str]] = []
    for member in members(folder):
        fields = member.stat()
        with contextlib.suppress(OSError):
            if fields and fields[0] not in ("Z", "X") and member.handles(DUMP_SIGNAL):
                os.kill(member.pid, DUMP_SIGNAL)
                if fields[0] in ("T", "t"):
                    os.kill(member.pid, signal.SIGCONT)
                asked.append((member, fields[0]))
    wait_until_written(lambda: [m.dump.stat().st_size if m.dump.exists() else 0 for m, _ in asked], DUMP_SECONDS)
    return [Stack(m.role, m.index, m.pid, state, end_of(m.dump, MOST_BYTES)) for m, state in asked]


def report(stacks: Sequence[tuple[str, Stack]]) -> str:
    """The whole text: (machine name, stack) pairs, each with its heading."""
    return "\n".join(f"=== {m}, {s.role} {s.index}, pid {s.pid}: {s.where()}\n{s.text}" for m, s in stacks)


class MachineHealth:
    """What an agent notices about its machine, whose log folder is ``folder``: signs of life, deaths, memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = 0.0, 0
        self._dead_since: dict[int, float] = {}
        self._kills = collections.deque([memory_kills()], MEMORY_LOOKS)

    def signs_of_life(self) -> dict[str, Any]:
        """Since the last call: ``cpu``, seconds of computing by the job's processes, and ``wrote``, bytes of logs."""
        cpu, size = 0.0, 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                cpu += sum(process.cpu_times()[:2])  # in user space, and in the kernel
        for path in set(self.folder.glob("*.log")) - {self.folder / "agent.log"}:
            with contextlib.suppress(OSError):  # somebody has just removed it
                size += path.stat().st_size
        before, self._before = self._before, (cpu, size)
        # With a process that has ended, its seconds are gone.
        return {"cpu": max(0.0, cpu - before[0]), "wrote": size - before[1]}

    def dead_workers(self) -> list[tuple[Member, int]]:
        """Samplers that ended badly while their trainer lives on (and would wait for them for ever): (who, code)."""
        dead, now = [], time.monotonic()
        for member in members(self.folder):
            fields = member.stat() if member.role in WORKERS else None
            if fields and fields[0] == "Z" and int(fields[1]) == member.parent:
                code = os.waitstatus_to_exitcode(int(fields[-1]))  # exit_code is the last field
                since = self._dead_since.setdefault(member.pid, now)
                if code not in (0, -signal.SIGTERM) and now - since > ZOMBIE_SECONDS:
                    self._dead_since[member.pid] = math.inf  # told once
                    dead.append((member, code))
        return dead

    def early_ends(self) -> list[dict[str, Any]]:
        """``exited`` messages of trainers that have ended with exit code 0, of each once; call it all the time.

        torchrun does not report this. A zombie has its code. If it was collected and the others live on, that was 0.
        """
        found, now = [], time.monotonic()
        trainers = [(member, member.stat()) for member in members(self.folder) if member.role == "trainer"]
        others = any(fields and fields[0] not in ("Z", "X") for _member, fields in trainers)
        for member, fields in trainers:
            if fields and (fields[0] not in ("Z", "X") or fields[-1] != "0"):
                continue
            since = self._dead_since.setdefault(member.pid, now)
            if since != math.inf and (fields or (others and now - since > ZOMBIE_SECONDS)):
                self._dead_since[member.pid] = math.inf
                told = {"role": "trainer", "index": member.index, "code": 0}
                found.append({"type": "exited", "time": time.time(), **told})
        return found

    def look_at_memory(self) -> None:
        """Note how many processes the kernel has killed so far. Call this method every two seconds."""
        self._kills.append(memory_kills())

    def out_of_memory(self, code: int | None) -> bool:
        """Return whether the kernel killed a process for want of memory near a death with this exit code.

        The counter belongs to the whole computer, so the killed process can be another one.
        """
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the latter from a shell
        return killed and memory_kills() > self._kills[0]


def memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started, or 0 if it does not count.

    The kernel includes kills in control groups, such as those of containers and Slurm.
    """
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), flags=re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def disk_trouble(folder: Path) -> str | None:
    """What is wrong with the place that a machine's logs and events are written to (its log folder), or None.

    It tries to write: a file system may say that there is room where a quota does not let us have it.
    """
    try:
        if missing := [path for path in [folder, *folder.parents] if not path.exists()]:
            return f"run folder {missing[-1]} has vanished (removed or unmounted while the job ran)"
        probe = folder / ".probe"
        try:
            probe.write_bytes(bytes(os.statvfs(folder).f_frsize))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "no space left on" if error.errno == errno.ENOSPC else "the disk quota is used up on"
            parts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
            mount = max(parts, key=lambda part: len(part.mountpoint), default=None)
            return f"{why} {folder}" + (f" ({mount.device}, mounted on {mount.mountpoint})" if mount else "")
        return f"cannot write to run folder {folder}: {error.strerror}"
    return None
