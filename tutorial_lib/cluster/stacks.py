"""Where every process of a job stands: Python stacks, asked for by a signal, and their one-line summary.

`hook/sitecustomize.py` has each process write its stacks to ``.processes/PID.stacks`` when signal 63 arrives. The
signal is answered in C, so also by a process that waits in a collective or for a DGL server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DUMP_SIGNAL = signal.SIGRTMAX - 1
DUMP_SECONDS = 3.0
FOLDER = ".processes"
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|tutorial_lib/cluster/hook")


@dataclass(frozen=True)
class Member:
    """A process of the job that has told who it is; ``index`` is the local rank for a sampler, of its trainer."""

    pid: int
    parent: int
    role: str
    index: int


@dataclass(frozen=True)
class Stack:
    """A process; ``state`` is the kernel's letter (T: stopped by a signal, D: waits for a disk), ``text`` the dump."""

    role: str
    index: int
    pid: int
    state: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it (SIGSTOP, or a debugger)."""
        return self.state in ("T", "t")

    def where(self) -> str:
        """One line: the innermost call, and the line of the script that led there."""
        if self.stopped:
            prefix = "stopped by a signal (SIGSTOP?), "
        elif self.state == "D":
            prefix = "waits for a disk or a network file system, "
        else:
            prefix = ""
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
    """The processes of a machine that have told who they are, also those that have ended."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(Member(**json.loads(path.read_text())))
    return found


def stat_of(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def state_of(pid: int) -> str | None:
    """The kernel's letter for the state of a process; None when there is none."""
    fields = stat_of(pid)
    return fields[0] if fields else None


def collect(folder: Path) -> list[Stack]:
    """Ask every living process of a machine for its stacks and read them.

    A stopped process answers once it goes on, so it is continued; the job is about to be ended anyway.
    """
    asked: dict[Member, str] = {}
    for member in members(folder):
        state = state_of(member.pid)
        if state in (None, "Z", "X"):
            continue
        with contextlib.suppress(OSError):
            os.kill(member.pid, DUMP_SIGNAL)
            if state in ("T", "t"):
                os.kill(member.pid, signal.SIGCONT)
            asked[member] = state
    deadline = time.monotonic() + DUMP_SECONDS
    sizes: dict[Member, int] = {}
    while time.monotonic() < deadline:
        now = {member: _dump(folder, member).stat().st_size for member in asked}
        if now and all(now.values()) and now == sizes:
            break
        sizes = now
        time.sleep(0.2)
    return [Stack(m.role, m.index, m.pid, s, _dump(folder, m).read_text(errors="replace")) for m, s in asked.items()]


def _dump(folder: Path, member: Member) -> Path:
    return folder / FOLDER / f"{member.pid}.stacks"


def report(stacks: Sequence[tuple[str, Stack]]) -> str:
    """The whole text: (machine name, stack) pairs, each with its heading."""
    return "\n".join(f"=== {m}, {s.role} {s.index}, pid {s.pid}: {s.where()}\n{s.text}" for m, s in stacks)
