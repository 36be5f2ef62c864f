"""What an agent notices about its machine while the job runs: signs of life, dead samplers, lost peers, lost memory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.cluster.network import SilentPeers
from tutorial_lib.cluster.stacks import Member, members, stat_of

SILENCE_SECONDS = 25.0  # a cable pulled for 5 s is survived by TCP; the report must come within a minute
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

    def __post_init__(self) -> None:
        self.peers = SilentPeers(self.addresses)
        self.oom_before = oom_kills()

    def signs_of_life(self) -> dict[str, Any]:
        """Since the last call: ``cpu``, seconds of computing by the job's processes, and ``wrote``, bytes of logs."""
        before, self._cpu = self._cpu, {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
        size = sum(path.stat().st_size for path in self.folder.glob("*.log") if path.name != "agent.log")
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
            fields = stat_of(member.pid)
            if not fields or fields[0] != "Z" or int(fields[1]) != member.parent:
                continue
            code = os.waitstatus_to_exitcode(int(fields[-1]))  # exit_code is the last field
            since = self._dead_since.setdefault(member.pid, now)
            if code not in (0, -15) and now - since > ZOMBIE_SECONDS:
                self._reported.add(member.pid)
                dead.append((member, code))
        return dead

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended some process of this computer for want of memory since the job began."""
        return oom_kills() > self.oom_before


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it was started; 0 where it does not say."""
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), flags=re.MULTILINE)
        return int(match[1]) if match else 0
    return 0
