"""What an agent notices about its machine while the job runs: life, dead samplers, lost peers, memory, disk."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.cluster.groups import counter_of, kills
from tutorial_lib.cluster.network import SilentPeers
from tutorial_lib.cluster.stacks import FOLDER, Member, members

SILENCE_SECONDS = 25.0  # a cable pulled for 5 s is survived by TCP; the report must come within a minute
MEMORY_SECONDS = 0.25
MEMORY_LOOKS = 40  # a kill that was counted before the last ten seconds of a process was not its own
FLAGS, ENDING = 6, 4  # place in ``stat_of``, and PF_EXITING
LITTLE_BYTES = 1 << 20
ZOMBIE_SECONDS = 1.0  # a parent that ends its samplers on purpose collects them within this time


@dataclass
class Watch:
    """Looks at one machine's processes every now and then.

    Args:
        folder: the machine's log folder.
        addresses: of the other machines.
    """

    folder: Path
    addresses: list[str]
    _cpu: dict[int, float] = field(default_factory=dict)
    _log_bytes: int = 0
    _dead_since: dict[int, float] = field(default_factory=dict)
    _reported: set[int] = field(default_factory=set)
    _kills: dict[Member, collections.deque[tuple[Path, int]]] = field(default_factory=dict)
    _next_memory: float = 0.0
    _changed: float = -1.0
    _members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peers = SilentPeers(self.addresses)

    def signs_of_life(self) -> dict[str, Any]:
        """Since the last call: ``cpu``, seconds of computing by the job's processes, and ``wrote``, bytes of logs."""
        before, self._cpu = self._cpu, {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
        size = 0
        for path in self.folder.glob("*.log"):
            with contextlib.suppress(OSError):  # somebody has just removed it
                size += path.stat().st_size if path.name != "agent.log" else 0
        wrote, self._log_bytes = size - self._log_bytes, size
        return {"cpu": sum(max(0.0, now - before.get(pid, 0.0)) for pid, now in self._cpu.items()), "wrote": wrote}

    def lost_peers(self) -> dict[str, float]:
        """Address -> seconds without an answer, for machines that have been silent for too long."""
        return {a: s for a, s in self.peers.look().items() if s > SILENCE_SECONDS}

    def dead_workers(self) -> list[tuple[Member, int]]:
        """Samplers that ended badly while their trainer lives on (and would wait for them for ever): (who, code)."""
        dead = []
        now = time.monotonic()
        for member in members(self.folder):
            if member.role not in ("sampler", "worker") or member.pid in self._reported:
                continue
            fields = member.stat()
            if not fields or fields[0] != "Z" or int(fields[1]) != member.parent:
                continue
            code = os.waitstatus_to_exitcode(int(fields[-1]))  # exit_code is the last field
            since = self._dead_since.setdefault(member.pid, now)
            if code not in (0, -15) and now - since > ZOMBIE_SECONDS:
                self._reported.add(member.pid)
                dead.append((member, code))
        return dead

    def look_at_memory(self) -> None:
        """Note for each process its control group and that group's count of kills; once it is dead nobody can tell."""
        now = time.monotonic()
        if now < self._next_memory:
            return
        self._next_memory = now + MEMORY_SECONDS
        for member in self._known():
            counter, fields = counter_of(member.pid), member.stat()
            # Of a process that is ending, version 1 says that it is in the topmost group.
            if counter is not None and fields and not int(fields[FLAGS]) & ENDING:
                seen = self._kills.setdefault(member, collections.deque(maxlen=MEMORY_LOOKS))
                seen.append((counter, kills(counter)))

    def _known(self) -> list[Member]:
        """All processes that have told who they are; read anew when there may be others."""
        changed = 0.0
        with contextlib.suppress(OSError):
            changed = (self.folder / FOLDER).stat().st_mtime
        if changed != self._changed or time.time() - changed < 1.0:  # a file system's clock is coarse
            self._changed, self._members = changed, members(self.folder)
        return self._members

    def out_of_memory(self, role: str, index: int, code: int | None) -> bool:
        """Whether the kernel has ended a process of its control group for want of memory when this one was killed."""
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):  # the latter from a shell
            return False
        for member, seen in self._kills.items():
            fields = member.stat()
            if (member.role, member.index) == (role, index) and (not fields or fields[0] in ("Z", "X")):
                counter = seen[-1][0]
                before = next(count for path, count in seen if path == counter)
                if kills(counter) > before:
                    return True
        return False


def disk_trouble(folder: Path, *, thorough: bool = False) -> str | None:
    """What is wrong with the place that a machine's logs and events are written to, or None.

    Args:
        folder: the machine's log folder.
        thorough: try to write even if the file system says that there is room (quotas).
    """
    try:
        if not folder.exists():
            missing = next(path for path in reversed([folder, *folder.parents]) if not path.exists())
            return f"run folder {missing} has vanished (removed or unmounted while the job ran)"
        free = os.statvfs(folder)
        if thorough or free.f_frsize * free.f_bavail < LITTLE_BYTES:
            probe = folder / ".probe"
            try:
                probe.write_bytes(bytes(free.f_frsize))
            finally:
                probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "no space left on" if error.errno == errno.ENOSPC else "the disk quota is used up on"
            return f"{why} {folder} ({device_of(folder)})"
        return f"cannot write to run folder {folder}: {error.strerror}"
    return None


def device_of(path: Path) -> str:
    """``/dev/sda1, mounted on /home``: where a file lies, as the kernel's list of mounts has it."""
    number = path.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == f"{os.major(number)}:{os.minor(number)}":
            return f"{fields[fields.index('-') + 2]}, mounted on {fields[4]}"
    return "unknown device"
