"""The processes of a job on a machine: their stacks and signs of life, and the memory and disk of the machine.

`hook/sitecustomize.py` makes for each process a file ``.processes/ROLE-INDEX-PID``, to which C code of the process
writes its stacks on signal 63, also while the process waits in a collective or for a DGL server.
"""

import collections
import contextlib
import os
import re
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tutorial_lib.launcher.logs import WORKERS, read_end

DUMP_SIGNAL = signal.SIGRTMAX - 1
FOLDER = ".processes"
SAVE_REQUEST_FILE = f"{FOLDER}/finish"  # if it exists, the trainers save a checkpoint in the middle of an epoch and end
OOM_HISTORY = 5  # a memory kill more than five calls of ``signs_of_life`` before a death was not its cause
STACK_BYTES = 1 << 18  # bytes of one process, whose main thread is last
_STATES = {"T": "is stopped by a signal (SIGSTOP?), ", "D": "waits for a disk or a network file system, "}
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<|tutorial_lib/launcher/hook")


@dataclass(frozen=True)
class ProcessStack:
    """A process of the job with its stacks and the kernel's letter for its state. A sampler has its trainer's index."""

    role: str
    local_index: int
    pid: int
    state: str = ""
    text: str = ""

    def where(self) -> str:
        """Return one line with the innermost call of the main thread and the line of the script that led there."""
        prefix = _STATES.get(self.state, "")
        frames = _FRAME.findall(self.text[self.text.rfind("(most recent call first)") :])
        if not frames:
            return f"{prefix}wrote no Python stack"
        path, line, function = frames[0]
        script = next((frame for frame in frames if not _LIBRARY.search(frame[0])), frames[0])
        caller = f", called from {Path(script[0]).name}:{script[1]} in {script[2]}" if script != frames[0] else ""
        return f"{prefix or 'is '}in {function} ({Path(path).name}:{line}){caller}"


def registered_processes(folder: Path) -> list[ProcessStack]:
    """Return the processes that have registered in the log folder of a machine, also those that have ended."""
    names = sorted(path.name.split("-") for path in (folder / FOLDER).glob("*-*-*"))
    return [ProcessStack(role, int(index), int(pid)) for role, index, pid in names]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state (field 3) on, or [] if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    return []


def collect_stacks(folder: Path) -> list[ProcessStack]:
    """Let every living process of a machine write its stacks, and read them. The job is about to end."""
    requested = []
    for record in registered_processes(folder):
        path = (folder / FOLDER / f"{record.role}-{record.local_index}-{record.pid}").resolve()
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(record.pid)
            state = "".join(_stat(record.pid)[:1])
            # Another program can have the PID by now, and the signal would end it. It does not have the file open.
            if str(path) in [file.path for file in process.open_files()]:
                process.send_signal(DUMP_SIGNAL)
                process.resume()  # a stopped process cannot write
                requested.append((path, replace(record, state=state)))
    time.sleep(1.0)  # the processes write their stacks
    return [replace(stack, text=read_end(path, STACK_BYTES)) for path, stack in requested]


class MachineHealth:
    """Observes the processes and the memory of a machine, whose log folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cpu, self._size = 0.0, 0
        self._zombies = set[ProcessStack]()
        self._kills = collections.deque([memory_kills()], OOM_HISTORY)

    def signs_of_life(self) -> dict[str, float]:
        """Return the CPU seconds of the job (``cpu``) and bytes of logs (``wrote``) since the last call."""
        self._kills.append(memory_kills())
        previous_cpu, previous_size = self._cpu, self._size
        self._size = sum(path.stat().st_size for path in self.folder.glob("*-*.log"))
        self._cpu = 0.0
        for process in psutil.Process().children(recursive=True):  # the seconds of a process that has ended are lost
            with contextlib.suppress(psutil.Error):
                self._cpu += sum(process.cpu_times()[:2])  # user and system
        return {"cpu": max(0.0, self._cpu - previous_cpu), "wrote": self._size - previous_size}

    def dead_workers(self) -> list[tuple[ProcessStack, int]]:
        """Return failed samplers that were zombies at the last call, too. Their trainers would wait forever."""
        stats = {worker: _stat(worker.pid) for worker in registered_processes(self.folder) if worker.role in WORKERS}
        zombies = {worker for worker, fields in stats.items() if fields[:1] == ["Z"]}
        codes = [(worker, os.waitstatus_to_exitcode(int(stats[worker][-1]))) for worker in zombies & self._zombies]
        self._zombies = zombies
        return [(worker, code) for worker, code in codes if code not in (0, -signal.SIGTERM)]

    def out_of_memory(self, code: int | None) -> bool:
        """Return whether the kernel killed a process for lack of memory in the ten seconds before a SIGKILL."""
        return code in (-signal.SIGKILL, 128 + signal.SIGKILL) and memory_kills() > self._kills[0]  # 137: of a shell


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot, or 0 if this is unknown."""
    match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(match[1]) if match else 0


def find_disk_problem(folder: Path) -> str | None:
    """Return why the log folder of a machine cannot be written, with its device, or None."""
    try:  # a file system can have room that a quota does not grant
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(4096))
    except FileNotFoundError:
        missing = next((path for path in [*reversed(folder.parents), folder] if not path.exists()), folder)
        return f"run folder {missing} has vanished (removed or unmounted while the job ran)"
    except OSError as error:
        disks = [disk for disk in psutil.disk_partitions(all=True) if folder.is_relative_to(disk.mountpoint)]
        disk = max(disks, key=lambda disk: len(disk.mountpoint))
        return f"cannot write to run folder {folder} ({disk.device}, mounted on {disk.mountpoint}): {error.strerror}"
    return None
