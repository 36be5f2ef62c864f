"""The processes of a job that runs on emulated machines, and how far its ranks are."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tutorial_lib.job.handle import Job


@dataclass(frozen=True)
class Running:
    """A process of a job; ``pid`` as this computer counts, ``rank`` None for all but trainers."""

    pid: int
    machine: str
    role: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.machine} {self.role}" + ("" if self.rank is None else f" (rank {self.rank})")


def processes_of(run: Path) -> list[Running]:
    """The processes of the job whose logs are in a run folder, on all emulated machines, by machine and role.

    All of them descend from this process. The log that a process writes to says what it is; samplers share that of
    their trainer.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            log = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
            if process.status() == psutil.STATUS_ZOMBIE or not log.is_relative_to(run):
                continue
            role, _, k = log.stem.partition("-")
            if "--multiprocessing-fork" not in process.cmdline():
                machine = log.parent.name
                ranks = len(list((log.parents[1] / "machine-0").glob("trainer-*.log")))
                rank = int(machine.removeprefix("machine-")) * ranks + int(k) if role == "trainer" else None
                found.append(Running(process.pid, machine, role, rank))
    return sorted(found, key=lambda r: (r.machine, r.role, r.rank or 0))


def wait_for_step(job: Job, ranks: int, epoch: int, step: int = 0, seconds: float = 180.0) -> None:
    """Until each of so many ranks has done a step; both are counted from 0, and a later step will do.

    Raises:
        RuntimeError: the job ended, or the time is up.
    """
    deadline = time.monotonic() + seconds
    while True:
        events = list(job.events)
        steps = {e["rank"] for e in events if e["kind"] == "step" and (e["epoch"], e["step"]) >= (epoch, step)}
        if len(steps) == ranks:
            return
        if not job.running or time.monotonic() > deadline:
            raise RuntimeError(f"no step {step} in epoch {epoch}; the job has ended: {not job.running}")
        time.sleep(0.02)
