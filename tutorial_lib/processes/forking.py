"""Before a fork: may this process fork now; and what DGL's tutorials call ``fix_openmp`` and ``prepare_mp``."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER_FILE = "/dev/nvidia-uvm"  # a CUDA context holds it open (looking at NVML alone does not)
_GNU = "GNU libgomp"
_RUNTIME = re.compile(r"^(\w+)-(\w+) .*/(libgomp|libiomp|libomp)[^/]*\.so[^/]*$", re.MULTILINE)
_NAMES = {"libgomp": _GNU, "libiomp": "Intel libiomp", "libomp": "LLVM libomp"}


class FreshThread:
    """A function that runs in a new thread each time it is called. Made by ``fix_openmp``."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found: dict[str, Any] = {}
        context = contextvars.copy_context()

        def target() -> None:
            try:
                found["value"] = context.run(self.fn, *args, **kwargs)
            except BaseException as caught:  # also SystemExit: a thread would swallow it
                found["error"] = caught

        thread = threading.Thread(target=target, name=f"fix_openmp {self.__name__}", daemon=True)
        thread.start()
        thread.join()
        if "error" in found:
            raise found.pop("error")  # and keep it nowhere: its traceback holds this frame
        return found["value"]

    def __reduce__(self) -> Any:
        """As a decorator: by name, like any function. Called on a function: that function, wrapped again there."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (fix_openmp, (self.fn,))


def fix_openmp(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for the function of a forked process: runs it in a fresh thread, so that OpenMP does not hang.

    GNU's libgomp keeps its pool of worker threads in a variable of the thread that opened the first parallel region.
    A fork copies that variable but not the workers: the child's copy of the thread waits at its next parallel
    region for workers that do not exist, for ever. A new thread of the child has no pool yet and makes its own.
    Reported as pytorch/pytorch#17199 (open), and cured like this in dmlc/dgl's multi-GPU examples; it is not in
    dgl 2.1.0 under this name, but ``dgl.multiprocessing.Process`` does the same. LLVM's and Intel's runtimes do not
    need it: they start anew in a forked child.

    What the function returns or raises (also SystemExit) arrives in the caller as if it had been called directly;
    nothing is pickled. Under spawn it is harmless. Each thread has its own gradient mode and CUDA device: set them
    inside the function.
    """
    return FreshThread(fn)


def prepare_mp(graph: Any) -> Any:
    """Build all sparse formats (COO, CSR, CSC) of a ``DGLGraph`` now, so that forked ranks share them; returns it.

    DGL builds a format when an operation first asks for it (sampling asks for CSC). Without this, each rank builds its
    own after the fork, in its own memory and time.

    Raises:
        TypeError: not a graph.
    """
    if not hasattr(graph, "create_formats_"):
        raise TypeError(f"prepare_mp needs a DGLGraph, got {type(graph).__qualname__}")
    graph.create_formats_()
    return graph


@dataclass(frozen=True)
class ForkSafety:
    """Answer of ``fork_safety``; print it.

    Attributes:
        cuda_initialized: torch has made a CUDA context in this process.
        cuda_driver_open: the CUDA driver is in use, perhaps by something other than torch (a file of it is open).
        openmp_used: a pool of OpenMP threads has been started; None: cannot be told here.
        fork, spawn: whether that start method is safe now.
        reasons: why, in plain words.
    """

    cuda_initialized: bool
    cuda_driver_open: bool
    openmp_used: bool | None
    fork: bool
    reasons: tuple[str, ...]
    spawn: bool = True

    def __str__(self) -> str:
        return "\n".join([f"fork {'safe' if self.fork else 'NOT safe'}, spawn safe", *self.reasons])


def _open_files() -> Iterator[str]:
    """Paths of this process's open files; another thread may close one meanwhile."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{number}")


def fork_safety() -> ForkSafety:
    """Look at this process, changing nothing, and say which start methods are safe.

    Known: ``torch.cuda.is_initialized()``, the mapped libraries, the number of threads. Inferred: a pool has been
    started if a thread waits at an instruction that lies inside an OpenMP library (``/proc/self/task/*/syscall``;
    a parked worker of libgomp does, and nothing else waits there). Only the thread that used OpenMP is unsafe to fork
    from; we do not know which one that was and assume the worst. In a forked child the workers are gone and the
    answer is about new ones only.
    """
    torch = sys.modules.get("torch")
    cuda, openmp = bool(torch is not None and torch.cuda.is_initialized()), _openmp()
    driver = any(file.startswith(DRIVER_FILE) for file in _open_files())
    used = any(openmp.values()) or (None if None in openmp.values() else False)
    gnu = openmp.get(_GNU, 0) != 0
    reasons = []
    if cuda or driver:
        reasons.append(
            "CUDA is in use here: a forked rank that touches it gets 'Cannot re-initialize CUDA in forked subprocess'"
        )
    if gnu:
        reasons.append(
            f"{_GNU} {'has' if openmp[_GNU] else 'may have'} started its threads: a forked rank hangs at its first "
            "parallel region unless its function is wrapped in fix_openmp or it calls torch.set_num_threads(1)"
        )
    if others := [name for name, waiting in openmp.items() if waiting and name != _GNU]:
        reasons.append(f"{' and '.join(others)} has started threads, but starts anew in a forked rank")
    if others := threading.active_count() - 1:
        reasons.append(f"{others} other Python threads run: a lock that one of them holds at the fork stays locked")
    fork = not (cuda or driver or gnu)
    if fork and not reasons:
        reasons.append("no CUDA, no pool of OpenMP threads, no other Python thread: nothing that a fork would break")
    reasons.append("spawn starts a fresh interpreter and inherits none of this")
    return ForkSafety(cuda, driver, used, fork, tuple(reasons))


def _openmp() -> dict[str, int | None]:
    """The loaded runtimes, each with the number of threads that wait inside it; None: cannot be told here."""
    spans: dict[str, list[range]] = {}
    for first, end, library in _RUNTIME.findall(Path("/proc/self/maps").read_text()):
        spans.setdefault(_NAMES[library], []).append(range(int(first, 16), int(end, 16)))
    waiting = _waiting_at() if spans else []
    return {
        name: None if waiting is None else sum(any(at in span for span in spans[name]) for at in waiting)
        for name in sorted(spans)
    }


def _waiting_at() -> list[int] | None:
    """Instruction addresses of this process's waiting threads; None where the kernel does not show them.

    A worker spins for a few milliseconds before it waits, so a running thread is given a moment.
    """
    end = time.monotonic() + 0.2
    while True:
        addresses, running = [], False
        for task in set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}:
            try:
                fields = Path(f"/proc/self/task/{task}/syscall").read_text().split()
            except OSError:
                if not os.path.exists(f"/proc/self/task/{task}/status"):
                    continue  # it has just ended
                return None
            running = running or fields[0] == "running"
            if len(fields) > 1:
                addresses.append(int(fields[-1], 16))
        if not running or time.monotonic() > end:
            return addresses
        time.sleep(0.01)
