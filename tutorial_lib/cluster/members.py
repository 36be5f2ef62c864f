"""The processes of a job on a machine: who they are, and where each stands (its Python stacks, and that in one line).

`hook/sitecustomize.py` has each process make a file ``.processes/ROLE-INDEX-PID-PARENT-STARTED``, and write its stacks
there when signal 63 arrives. The signal is answered in C, so also by a process that waits in a collective or for a DGL
server.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.files import wait_until_written

DUMP_SIGNAL = signal.SIGRTMAX - 1
DUMP_SECONDS = 3.0
FOLDER = ".processes"
STARTED = 19  # place of the start time in ``stat_of``
MOST_TEXT = 1 << 18  # characters of one process's stacks
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|tutorial_lib/cluster/hook")


@dataclass(frozen=True)
class Member:
    """A process of the job that has told who it is; ``index`` is the local rank, for a sampler that of its trainer.

    ``started`` is when, as the kernel counts (field 22 of /proc/PID/stat): with the number it names one process only.
    """

    role: str
    index: int
    pid: int
    parent: int
    started: int
    dump: Path  # of its stacks

    def stat(self) -> list[str] | None:
        """As ``stat_of``; None also when another process has the number by now."""
        fields = stat_of(self.pid)
        return fields if fields and int(fields[STARTED]) == self.started else None

    def handles(self, number: int) -> bool:
        """Whether this very process has a handler for a signal, which would end it otherwise."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            handled = re.search(r"^SigCgt:\s*(\w+)", status, flags=re.MULTILINE)
            return bool(handled and int(handled[1], 16) >> (number - 1) & 1 and self.stat())
        return False


@dataclass(frozen=True)
class Stack:
    """A process; ``state`` is the kernel's letter (T: stopped by a signal, D: waits for a disk), ``text`` the dump."""

    role: str
    index: int
    pid: int
    state: str
    text: str

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it (SIGSTOP, or a debugger)."""
        return self.state in ("T", "t")

    def where(self) -> str:
        """One line: the innermost call, and the line of the script that led there."""
        waits = "waits for a disk or a network file system, " if self.state == "D" else ""
        prefix = "stopped by a signal (SIGSTOP?), " if self.stopped else waits
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
    """The processes of a machine, by its log folder, that have told who they are, also those that have ended."""
    found = []
    for path in sorted((folder / FOLDER).glob("*-*-*-*-*")):
        role, *numbers = path.name.split("-")
        found.append(Member(role, *map(int, numbers), dump=path))
    return found


def stat_of(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return None


def collect(folder: Path) -> list[Stack]:
    """Ask every living process of a machine for its stacks and read them.

    A stopped process answers once it goes on, so it is continued; the job is about to be ended anyway.
    """
    asked: list[tuple[Member, str]] = []
    for member in members(folder):
        fields = member.stat()
        with contextlib.suppress(OSError):
            if fields and fields[0] not in ("Z", "X") and member.handles(DUMP_SIGNAL):
                os.kill(member.pid, DUMP_SIGNAL)
                if fields[0] in ("T", "t"):
                    os.kill(member.pid, signal.SIGCONT)
                asked.append((member, fields[0]))
    wait_until_written(lambda: [m.dump.stat().st_size if m.dump.exists() else 0 for m, _ in asked], DUMP_SECONDS)
    return [Stack(m.role, m.index, m.pid, state, _text(m.dump)) for m, state in asked]


def _text(dump: Path) -> str:
    with contextlib.suppress(OSError), dump.open(errors="replace") as file:
        return file.read(MOST_TEXT)
    return ""


def report(stacks: Sequence[tuple[str, Stack]]) -> str:
    """The whole text: (machine name, stack) pairs, each with its heading."""
    return "\n".join(f"=== {m}, {s.role} {s.index}, pid {s.pid}: {s.where()}\n{s.text}" for m, s in stacks)
