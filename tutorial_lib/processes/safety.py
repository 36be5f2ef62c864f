"""May this process fork now? What is known, what is inferred, and what follows from it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

DRIVER_FILE = "/dev/nvidia-uvm"
_RUNTIME = re.compile(r"/(libgomp|libiomp5?|libomp)[^/]*\.so[^/]*$")
_NAMES = {"libgomp": "GNU libgomp", "libiomp": "Intel libiomp", "libiomp5": "Intel libiomp", "libomp": "LLVM libomp"}


@dataclass(frozen=True)
class OpenMPRuntime:
    """An OpenMP library that is loaded in this process.

    Attributes:
        name: "GNU libgomp", "Intel libiomp" or "LLVM libomp", by the name of the file.
        path: the file.
        workers: threads that wait inside this library; None where the kernel does not show it.
    """

    name: str
    path: str
    workers: int | None


@dataclass(frozen=True)
class ForkSafety:
    """Answer of ``fork_safety``; print it.

    Attributes:
        cuda_initialized: torch has made a CUDA context in this process.
        cuda_driver_open: the CUDA driver is in use, perhaps by something other than torch (a file of it is open).
        openmp: the loaded runtimes.
        openmp_used: a pool of OpenMP threads has been started; None: cannot be told here.
        threads, python_threads: of the process; the difference was started by C code.
        fork, spawn: whether that start method is safe now.
        reasons: why, in plain words.
    """

    cuda_initialized: bool
    cuda_driver_open: bool
    openmp: tuple[OpenMPRuntime, ...]
    openmp_used: bool | None
    threads: int
    python_threads: int
    fork: bool
    spawn: bool
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        used = {True: "yes", False: "no", None: "cannot be told here"}[self.openmp_used]
        runtimes = ", ".join(f"{r.name} ({Path(r.path).name})" for r in self.openmp) or "none loaded"
        lines = [
            f"CUDA initialised   {'yes' if self.cuda_initialized else 'no'}"
            + (" (but its driver is in use)" if self.cuda_driver_open and not self.cuda_initialized else ""),
            f"OpenMP runtime     {runtimes}",
            f"OpenMP pool        {used}",
            f"threads            {self.threads}, {self.python_threads} of them Python's",
            f"fork               {'safe' if self.fork else 'NOT safe'}",
            "spawn              safe",
            *(f"- {reason}" for reason in self.reasons),
        ]
        return "\n".join(lines)


def fork_safety() -> ForkSafety:
    """Look at this process, changing nothing, and say which start methods are safe.

    Known: ``torch.cuda.is_initialized()``, the mapped libraries, the number of threads. Inferred: a pool has been
    started if a thread waits at an instruction that lies inside an OpenMP library (``/proc/self/task/*/syscall``;
    a parked worker of libgomp does, and nothing else waits there). Only the thread that used OpenMP is unsafe to fork
    from; we do not know which one that was and assume the worst. In a forked child the workers are gone and the
    answer is about new ones only.
    """
    torch = sys.modules.get("torch")
    cuda = bool(torch is not None and torch.cuda.is_initialized())
    driver = _driver_open()
    openmp = _runtimes()
    known = all(runtime.workers is not None for runtime in openmp)
    used = True if any(runtime.workers for runtime in openmp) else (False if known else None)
    gnu = [runtime for runtime in openmp if runtime.name == "GNU libgomp" and runtime.workers != 0]
    count = len(os.listdir("/proc/self/task"))
    reasons = []
    if cuda or driver:
        reasons.append(
            "CUDA is in use here: a forked rank that touches it gets 'Cannot re-initialize CUDA in forked subprocess'"
        )
    for runtime in gnu:
        sure = "has started" if runtime.workers else "may have started"
        reasons.append(
            f"{runtime.name} {sure} its threads: a forked rank hangs at its first parallel region "
            "unless its function is wrapped in fix_openmp or it calls torch.set_num_threads(1)"
        )
    others = sorted({runtime.name for runtime in openmp if runtime.workers and runtime.name != "GNU libgomp"})
    if others:
        reasons.append(f"{' and '.join(others)} has started threads, but starts anew in a forked rank")
    if threading.active_count() > 1:
        reasons.append(
            f"{threading.active_count() - 1} other Python threads run: a lock that one of them holds at the fork "
            "stays locked in the rank"
        )
    fork = not (cuda or driver or gnu)
    if fork and not reasons:
        reasons.append("no CUDA, no pool of OpenMP threads, no other Python thread: nothing that a fork would break")
    reasons.append("spawn starts a fresh interpreter and inherits none of this")
    return ForkSafety(cuda, driver, openmp, used, count, threading.active_count(), fork, True, tuple(reasons))


def _driver_open() -> bool:
    """Whether this process holds the file that a CUDA context needs (looking at NVML alone does not open it)."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(DRIVER_FILE):
                return True
    return False


def _runtimes() -> tuple[OpenMPRuntime, ...]:
    """The OpenMP libraries in this process, each with the number of its waiting workers."""
    spans: dict[str, list[range]] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and _RUNTIME.search(fields[5]):
            first, end = (int(text, 16) for text in fields[0].split("-"))
            spans.setdefault(fields[5], []).append(range(first, end))
    waiting = _waiting_at() if spans else []
    result = []
    for path in sorted(spans):
        name = _NAMES[_RUNTIME.search(path)[1]]
        workers = None if waiting is None else sum(any(at in span for span in spans[path]) for at in waiting)
        result.append(OpenMPRuntime(name, path, workers))
    return tuple(result)


def _waiting_at() -> list[int] | None:
    """Instruction addresses of this process's waiting threads; None where the kernel does not show them.

    A worker spins for a few milliseconds before it waits, so a running thread is given a moment.
    """
    own = threading.get_native_id()
    end = time.monotonic() + 0.2
    while True:
        addresses, running = [], False
        for task in os.listdir("/proc/self/task"):
            if int(task) == own:
                continue
            try:
                fields = Path(f"/proc/self/task/{task}/syscall").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                if not os.path.exists(f"/proc/self/task/{task}/status"):
                    continue  # it has just ended
                return None
            except OSError:
                return None
            running = running or fields[0] == "running"
            if len(fields) > 1:
                addresses.append(int(fields[-1], 16))
        if not running or time.monotonic() > end:
            return addresses
        time.sleep(0.01)
