"""The processes that an agent has started: what is known of each, which of them failed, and how all are ended."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tutorial_lib.cluster.logs import end_of

TERM_SECONDS = 3.0
POLL_SECONDS = 0.05


@dataclass
class Process:
    """A child of the agent. ``code`` is None while it runs, negative for a signal."""

    role: str
    index: int
    popen: subprocess.Popen
    log: Path
    code: int | None = None
    peak_rss: int = 0
    ended: float = 0.0


def who_failed(torchrun: Process) -> tuple[str, int, int | None, Path]:
    """Role, index, exit code and log of the trainer that torchrun names as its first failure, else of torchrun."""
    match = re.search(r"exitcode: (-?\d+)\) local_rank: (\d+)", end_of(torchrun.log))
    if match:
        log = torchrun.log.with_name(f"trainer-{match[2]}.log")
        if log.exists():
            return "trainer", int(match[2]), int(match[1]), log
    return "torchrun", 0, torchrun.code, torchrun.log


def peak_rss(processes: Iterable[Process]) -> dict[str, int]:
    """Bytes of the largest process of each kind; torchrun's figure covers its trainers."""
    peaks: dict[str, int] = {}
    for process in processes:
        role = "trainer" if process.role == "torchrun" else process.role
        peaks[role] = max(peaks.get(role, 0), process.peak_rss)
    return peaks


def end_descendants(reap: Callable[[], None]) -> None:
    """Terminate, wait, kill: all descendants of this process, also those whose parent is gone.

    Args:
        reap: collects the children that have ended; called again and again.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + TERM_SECONDS
        # Listed anew each time: a process may be forked after the others were told to end.
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):  # it has ended, or is another user's (setuid)
                    process.send_signal(number)
            time.sleep(POLL_SECONDS)
            reap()
    reap()
