"""The progress of a job and its processes."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tutorial_lib.errors import retry_until_timeout


def read_events(out: Path) -> list[dict]:
    """Return the events of a run so far, without an incomplete last line."""
    path = out / "events.jsonl"
    content = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()]


def wait_until(met: Callable[[], Any], what: str, seconds: float = 30, command: subprocess.Popen | None = None) -> Any:
    """Wait until ``met`` returns a true value, and return it. Fail after a time limit or if the command ends."""
    for _ in retry_until_timeout(what, seconds, pause=0.02, log=lambda _text: None):
        if found := met():
            return found
        assert command is None or command.poll() is None, f"ended before {what}: {command.communicate()}"
    raise AssertionError(what)


def ranks_past(run: Path, epoch: int, step: int) -> set[int]:
    """Return the ranks that have finished this step. Epochs and steps count from 0."""
    return {e["rank"] for e in read_events(run) if e["kind"] == "step" and (e["epoch"], e["step"]) >= (epoch, step)}


@dataclass(frozen=True)
class Running:
    """A process of a job with its PID on this computer. ``rank`` is None except for trainers."""

    pid: int
    machine: str
    role: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.machine} {self.role}" + ("" if self.rank is None else f" (rank {self.rank})")


def find_processes(run: Path) -> list[Running]:
    """Return the processes whose logs are below a folder. The name of the log contains the role."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            log, words = Path(os.readlink(f"/proc/{process.pid}/fd/2")), process.cmdline()
            machine, (role, _, k) = log.parent.name, log.stem.partition("-")
            if process.status() == psutil.STATUS_ZOMBIE or not log.is_relative_to(run) or words[:1] == ["/bin/sh"]:
                continue
            number = int(machine.removeprefix("machine-"))
            ranks = len(list((log.parents[1] / "machine-0").glob("trainer-*.log")))
            role = "sampler" if "--multiprocessing-fork" in words else role
            rank = number * ranks + int(k) if role == "trainer" else None
            found.append(Running(process.pid, machine, role, rank))
    return sorted(found, key=lambda r: (r.machine, r.role, r.rank or 0))
