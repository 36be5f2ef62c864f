"""The processes of a job that runs on emulated machines, and how far its ranks are."""

import contextlib
import os
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from commands import events_of


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


def wait_for_step(job: Future[Any], run: Path, ranks: int, epoch: int, step: int = 0, seconds: float = 180.0) -> None:
    """Wait until every rank has finished a step or a later one. Epochs and steps count from 0.

    Args:
        job: ``run_distributed`` in a thread.
        run: its run folder.

    Raises:
        RuntimeError: the job ended before this step, or the time limit is over.
    """
    deadline = time.monotonic() + seconds
    while True:
        steps = {e["rank"] for e in events_of(run) if e["kind"] == "step" and (e["epoch"], e["step"]) >= (epoch, step)}
        if len(steps) == ranks:
            return
        if job.done() or time.monotonic() > deadline:
            raise RuntimeError(f"no step {step} in epoch {epoch}; the job has ended: {job.done()}")
        time.sleep(0.05)
