"""Lesson 11: the processes of a job that runs on emulated machines, and when each of them ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.errors import how_it_ended
from tutorial_lib.job.handle import Job

LOOK_SECONDS, FIRST_LOOK_SECONDS = 0.04, 5.0


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

    All of them descend from this process. The environment of each says what it is: torchrun sets RANK, the agent
    DGL_ROLE. An agent is known by its command and its log.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            command, logs = process.cmdline(), os.readlink(f"/proc/{process.pid}/fd/2")
            if not Path(logs).is_relative_to(run):
                continue
            env = process.environ()
            if command[2:3] == ["tutorial_lib.cluster.agent"]:
                found.append(Running(process.pid, Path(logs).parent.name, "agent"))
            elif "torch.distributed.run" in command:
                found.append(Running(process.pid, env["TUTORIAL_MACHINE"], "torchrun"))
            elif env.get("DGL_ROLE") == "server":
                found.append(Running(process.pid, env["TUTORIAL_MACHINE"], "server"))
            elif "RANK" in env:
                found.append(Running(process.pid, env["TUTORIAL_MACHINE"], "trainer", int(env["RANK"])))
    return sorted(found, key=lambda r: (r.machine, r.role, r.rank or 0))


def wait_for_step(job: Job, epoch: int, step: int = 0, seconds: float = 180.0) -> None:
    """Until every rank has done a step; both are counted from 0, and a later step will do.

    Raises:
        RuntimeError: the job ended, or the time is up.
    """
    deadline = time.monotonic() + seconds
    while True:
        events = list(job.events)
        steps = {e["rank"] for e in events if e["kind"] == "step" and (e["epoch"], e["step"]) >= (epoch, step)}
        if len(steps) > 1:
            return
        if not job.running or time.monotonic() > deadline:
            raise RuntimeError(f"no step {step} in epoch {epoch}; the job has ended: {not job.running}")
        time.sleep(0.02)


class Lifelines:
    """Looks at the processes of a job again and again, for a picture of who ends when.

    ``with Lifelines(job.out) as lives: os.kill(...); report_of(job)``. Times are seconds since 1970.

    Attributes:
        seen: for each process the first and the last time that it was seen alive.
        start, end: of the block.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.seen: dict[Running, tuple[float, float]] = {}
        self.start = self.end = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.is_set():
            now = time.time()
            for process in processes_of(self.run):
                self.seen[process] = (self.seen.get(process, (now,))[0], now)
            self._stop.wait(LOOK_SECONDS)

    def __enter__(self) -> Lifelines:
        self._thread.start()
        while not self.seen and time.time() < self.start + FIRST_LOOK_SECONDS:
            time.sleep(LOOK_SECONDS / 4)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end = time.time()
        self._stop.set()
        self._thread.join()


def timeline_of(job: Job, lives: Lifelines, victim: Running, killed: float) -> dict[str, Any]:
    """For ``plots.breaking.deaths``: when each process of a job was last alive, in seconds after a kill.

    The note at a process is how it ended: the code that its agent saw, or the exception that a trainer told.
    """
    exits = {(e["machine"], e["role"]): e for e in job.events if e["kind"] == "exited"}
    told = {e["rank"]: e["exception"] for e in job.events if e["kind"] == "failure"}
    rows = []
    for process, (first, last) in sorted(lives.seen.items(), key=lambda item: (item[0].machine, item[0].role)):
        note = told.get(process.rank, "") if process.role == "trainer" else ""
        if (ended := exits.get((process.machine, process.role))) is not None:
            note = how_it_ended(ended["code"]).removeprefix("killed by ")
        steps = [e["time"] - killed for e in job.events if e["kind"] == "step" and e["rank"] == process.rank]
        times = {"start": first - killed, "stop": last - killed}
        rows.append({"name": str(process), "role": process.role, "note": note, "steps": steps, **times})
        if process == victim:
            rows[-1]["note"] = "signal 9 (SIGKILL)"
    witnesses = [exits.get((victim.machine, role)) for role in (victim.role, "torchrun")]
    reported = min(e["time"] for e in witnesses if e is not None)
    return {"rows": rows, "victim": str(victim), "told": reported - killed, "end": lives.end - killed}
