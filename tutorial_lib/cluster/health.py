"""What an agent notices about its machine while the job runs: life, dead samplers, lost peers, memory, disk."""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.cluster.members import FOLDER, Member, members
from tutorial_lib.cluster.network import SilentPeers

SILENCE_SECONDS = 25.0  # a cable pulled for 5 s is survived by TCP; the report must come within a minute
MEMORY_SECONDS = 0.25
MEMORY_LOOKS = 40  # a kill that was counted before the last ten seconds of a process was not its own
FLAGS, ENDING = 6, 4  # place in ``stat_of``, and PF_EXITING
LITTLE_BYTES = 1 << 20
ZOMBIE_SECONDS = 1.0  # a parent that ends its samplers on purpose collects them within this time


class MachineHealth:
    """Looks at one machine's processes every now and then.

    Args:
        folder: the machine's log folder.
        addresses: of the other machines.
    """

    def __init__(self, folder: Path, addresses: list[str]) -> None:
        self.folder, self.peers = folder, SilentPeers(addresses)
        self._cpu: dict[int, float] = {}
        self._log_bytes = 0
        self._dead_since: dict[int, float] = {}
        self._reported: set[int] = set()
        self._kills: dict[Member, collections.deque[tuple[Path, int]]] = {}
        self._next_memory = 0.0
        self._changed, self._members = -1.0, list[Member]()

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
            if code not in (0, -signal.SIGTERM) and now - since > ZOMBIE_SECONDS:
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
            counter, fields = _kill_counter_of(member.pid), member.stat()
            # Of a process that is ending, version 1 says that it is in the topmost group.
            if counter is not None and fields and not int(fields[FLAGS]) & ENDING:
                seen = self._kills.setdefault(member, collections.deque(maxlen=MEMORY_LOOKS))
                seen.append((counter, _kills(counter)))

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
                if _kills(counter) > before:
                    return True
        return False


@functools.cache
def _memory_groups() -> tuple[str, str, Path] | None:
    """(controller in /proc/PID/cgroup, group at the mount point, mount point); version 1's memory, else version 2."""
    found: dict[str, tuple[str, str, Path]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
                found.setdefault(kind, ("" if kind == "cgroup2" else "memory", fields[3], Path(fields[4])))
    return found.get("cgroup") or found.get("cgroup2")


def _kill_counter_of(pid: int) -> Path | None:
    """The file that counts how many processes of a living process's own control group the kernel has ended.

    None where the kernel or the container hides it. The counter of the whole computer would also count what happens to
    other people's processes. In version 2 a group may leave memory to the one above it; then that one's file.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
        return _counter_in(file.read())
    return None


@functools.lru_cache
def _counter_in(text: str) -> Path | None:
    if (groups := _memory_groups()) is None:
        return None
    controller, root, mount = groups
    for line in text.splitlines():
        _number, names, group = line.split(":", 2)
        with contextlib.suppress(OSError, ValueError):  # ValueError: a group that this container does not show
            if controller in names.split(","):
                folder = mount / Path(group).relative_to(root)
                for place in [folder, *folder.parents][: len(folder.parts) - len(mount.parts) + 1]:
                    for name in ("memory.oom_control", "memory.events.local", "memory.events"):
                        if (place / name).exists():
                            return place / name
    return None


def _kills(counter: Path) -> int:
    """The count now; 0 when the group is gone."""
    with contextlib.suppress(OSError), counter.open() as file:
        match = re.search(r"^oom_kill (\d+)", file.read(), flags=re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


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
            device, mounted = _mount_of(folder)
            return f"{why} {folder} ({device}, mounted on {mounted})"
        return f"cannot write to run folder {folder}: {error.strerror}"
    return None


def _mount_of(path: Path) -> tuple[str, str]:
    """Device and folder of the file system that a path is on."""
    parts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    part = max(parts, key=lambda part: len(part.mountpoint), default=None)
    return (part.device, part.mountpoint) if part else ("unknown device", "?")
