"""The processes of a job on a machine: their stacks and signs of life, and the memory and disk of the machine.

`hook/sitecustomize.py` makes for each process a file ``.processes/ROLE-INDEX-PID-PARENT-STARTED``, to which the process
writes its stacks on signal 63. C code handles the signal, so a process that waits in a collective or for a DGL server
answers, too.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.launcher.logs import WORKERS, end_of

DUMP_SIGNAL = signal.SIGRTMAX - 1
DUMP_SECONDS = 3.0
FOLDER = ".processes"
FINISH = f"{FOLDER}/finish"  # if this file exists, the trainers save a checkpoint in the middle of an epoch and end
STARTED = 19  # index in ``stat_of``
MEMORY_LOOKS = 5  # a memory kill more than five calls of ``signs_of_life`` before a death was not its cause
ZOMBIE_SECONDS = 1.0  # a parent that ends its samplers on purpose collects them within this time
STACK_BYTES = 1 << 18  # of one process; the main thread is last
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|tutorial_lib/launcher/hook")


@dataclass(frozen=True)
class Member:
    """A process of the job, as its file describes it."""

    role: str
    index: int  # local rank; a sampler has that of its trainer
    pid: int
    parent: int
    started: int  # in ticks of the kernel, which distinguishes processes of equal PIDs
    dump: Path

    def stat(self) -> list[str] | None:
        """Return ``stat_of`` this process, or None if it has ended, also if another process has its PID."""
        fields = stat_of(self.pid)
        return fields if fields and int(fields[STARTED]) == self.started else None

    def handles(self, number: int) -> bool:
        """Return whether this process has a handler for a signal, which would otherwise end it."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            handled = re.search(r"^SigCgt:\s*(\w+)", status, flags=re.MULTILINE)
            return bool(handled and int(handled[1], 16) >> (number - 1) & 1 and self.stat())
        return False


@dataclass(frozen=True)
class Stack:
    """The stacks of a process. ``state`` is the kernel's letter (T: stopped by a signal, D: waits for a disk)."""

    role: str
    index: int
    pid: int
    state: str
    text: str

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped by SIGSTOP or a debugger."""
        return self.state in ("T", "t")

    def where(self) -> str:
        """Return one line with the innermost call of the main thread and the line of the script that led there."""
        waits = "waits for a disk or a network file system, " if self.state == "D" else ""
        prefix = "stopped by a signal (SIGSTOP?), " if self.stopped else waits
        main_thread = re.split(r"^(?:Current thread|Thread) .*$", self.text, flags=re.MULTILINE)[-1]
        frames = _FRAME.findall(main_thread)
        if not frames:
            return f"{prefix}wrote no Python stack"
        path, line, function = frames[0]
        text = f"{prefix}in {function} ({Path(path).name}:{line})"
        script = next((frame for frame in frames if not _LIBRARY.search(frame[0])), frames[0])
        if script != frames[0]:
            text += f", called from {Path(script[0]).name}:{script[1]} in {script[2]}"
        return text


def members(folder: Path) -> list[Member]:
    """Return the processes that have registered in the log folder of a machine, also those that have ended."""
    found = []
    for path in sorted((folder / FOLDER).glob("*-*-*-*-*")):
        role, *numbers = path.name.split("-")
        found.append(Member(role, *map(int, numbers), dump=path))
    return found


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state (field 3) on, or None if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return None


def collect(folder: Path) -> list[Stack]:
    """Let every living process of a machine write its stacks, and read them.

    A stopped process is continued because it cannot write otherwise. The job is about to end.
    """
    asked: list[tuple[Member, str]] = []
    for member in members(folder):
        fields = member.stat()
        with contextlib.suppress(OSError):
            if fields and fields[0] not in ("Z", "X") and member.handles(DUMP_SIGNAL):
                os.kill(member.pid, DUMP_SIGNAL)
                os.kill(member.pid, signal.SIGCONT)
                asked.append((member, fields[0]))
    wait_until_written(lambda: [m.dump.stat().st_size if m.dump.exists() else 0 for m, _ in asked], DUMP_SECONDS)
    return [Stack(m.role, m.index, m.pid, state, end_of(m.dump, STACK_BYTES)) for m, state in asked]


def wait_until_written(sizes: Callable[[], list[int]], seconds: float) -> None:
    """Wait until all ``sizes`` of files (bytes) are positive and stop growing, or until the time is over."""
    before: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        now = sizes()
        if all(now) and now == before:
            return
        before = now


def report(stacks: Sequence[tuple[str, Stack]]) -> str:
    """Return the text of pairs of a machine name and a stack, each with a heading."""
    return "\n".join(f"=== {m}, {s.role} {s.index}, pid {s.pid}: {s.where()}\n{s.text}" for m, s in stacks)


class MachineHealth:
    """Observes the processes and the memory of a machine, whose log folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cpu, self._size = 0.0, 0
        self._zombies: dict[int, float] = {}
        self._kills = collections.deque([memory_kills()], MEMORY_LOOKS)

    def signs_of_life(self) -> dict[str, Any]:
        """Return the CPU seconds of the job (``cpu``) and bytes of logs (``wrote``) in the two seconds since a call."""
        self._kills.append(memory_kills())
        cpu, size = 0.0, 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                cpu += sum(process.cpu_times()[:2])  # user and system
        for path in self.folder.glob("*.log"):
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.name != "agent.log" else 0
        # The seconds of a process that has ended are lost.
        signs = {"cpu": max(0.0, cpu - self._cpu), "wrote": size - self._size}
        self._cpu, self._size = cpu, size
        return signs

    def dead_workers(self) -> list[tuple[Member, int]]:
        """Return each failed sampler of a living trainer, which would wait for it forever, once with its exit code."""
        dead, now = [], time.monotonic()
        for member in members(self.folder):
            fields = member.stat() if member.role in WORKERS else None
            if fields and fields[0] == "Z" and int(fields[1]) == member.parent:
                code = os.waitstatus_to_exitcode(int(fields[-1]))  # exit_code is the last field
                since = self._zombies.setdefault(member.pid, now)
                if code not in (0, -signal.SIGTERM) and now - since > ZOMBIE_SECONDS:
                    self._zombies[member.pid] = math.inf
                    dead.append((member, code))
        return dead

    def out_of_memory(self, code: int | None) -> bool:
        """Return whether the kernel killed a process for want of memory in the ten seconds before a SIGKILL.

        The counter belongs to the whole computer, so the killed process can be another one.
        """
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the latter from a shell
        return killed and memory_kills() > self._kills[0]


def memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory, also in control groups, since it started."""
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), flags=re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def disk_trouble(folder: Path) -> str | None:
    """Return why the log folder of a machine cannot be written, or None.

    This function writes a file, because a file system can have room that a quota does not grant.
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
        reasons = {errno.ENOSPC: "no space left on", errno.EDQUOT: "the disk quota is used up on"}
        if error.errno not in reasons:
            return f"cannot write to run folder {folder}: {error.strerror}"
        parts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
        mount = max(parts, key=lambda part: len(part.mountpoint), default=None)
        device = f" ({mount.device}, mounted on {mount.mountpoint})" if mount else ""
        return f"{reasons[error.errno]} {folder}{device}"
    return None
