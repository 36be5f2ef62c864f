"""``spawn`` and ``fork``: run a function in several processes as if it were one call.

The parent starts the ranks, waits until one has failed or all have ended, stops what is left, prints their output,
and tells the first failure in the best words.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, process
from typing import Any

from support.processes.child import Call, Plan, flush_c, rank_main
from support.processes.failures import RanksTimedOut, failure_of, users_frames
from tutorial_lib.errors import InputError

COLLECTIVE_EXTRA = 30.0  # seconds: a collective must not give up before we have asked the ranks where they are
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LEAVE = 30.0  # seconds for the end of ranks that have all returned
PATIENCE = 1.0  # seconds for a stack to be written
FORKED = (
    "A forked rank hangs at its first parallel region where this process has used OpenMP, unless its function is in "
    "fix_openmp or it has one thread; and it cannot use CUDA where this process has."
)
# Of calls in several threads, one starts its ranks at a time: they share os.environ, and a copy of this process made
# while another thread makes a store has half of it.
STARTING = threading.Lock()


def spawn(
    fn: Callable[..., Any],
    nprocs: int,
    args: tuple[Any, ...] = (),
    *,
    timeout: float = 600.0,
    backend: str | None = None,
    threads: int | None = None,
    echo: bool = True,
) -> list[Any]:
    """Call ``fn(rank, world_size, *args)`` in ``nprocs`` fresh Python processes; return the results in rank order.

    The ranks find each other through a store that the parent holds: a socket that the parent has bound to a port
    of the kernel's choice is handed to a ``TCPStore``, so no other program can take the port in between. The variables
    of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...) are set: ``init_process_group("gloo")`` in ``fn`` works too.
    Nothing is left when the call ends, however it ends: each rank leads a process group of its own, and the kernel
    kills that group when the parent dies.

    Args:
        fn: importable by a fresh interpreter: not from a notebook cell, no lambda, no inner function.
        nprocs: number of ranks, at least 1.
        args: pickled for each rank. Tensors go through shared memory: a rank that writes to one writes to everybody's.
        timeout: seconds for everything, the start of the processes included.
        backend: make a process group ("gloo", "nccl") before ``fn``; it ends with the rank. None: do not.
            With "nccl", rank k uses GPU k, and collectives of CPU tensors go over gloo (not run here: no GPU).
        threads: OpenMP threads per rank; None: this process's CPUs divided by ``nprocs``.
        echo: print what the ranks wrote (Python and C code, both streams) when all are done, in rank order.

    Returns:
        What each rank returned (None after ``sys.exit(0)``).

    Raises:
        InputError: a wrong argument, or one that cannot be pickled; no process was started.
        RanksTimedOut: time is up; tells where each rank was.
        RankFailed: a rank ended without a result (``os._exit``, a signal, ``sys.exit(2)``), or its exception cannot be
            pickled.
        Exception: what the first failed rank raised, with its own type; ``__cause__`` holds the rank's traceback.
    """
    return _run("spawn", Call(fn, args), nprocs, timeout, backend, threads, echo, "")


def fork(
    fn: Callable[..., Any],
    nprocs: int,
    args: tuple[Any, ...] = (),
    *,
    timeout: float = 600.0,
    backend: str | None = None,
    threads: int | None = None,
    echo: bool = True,
) -> list[Any]:
    """As ``spawn``, but in copies of this process: nothing is pickled on the way in, memory is shared until written.

    ``fn`` may be any function, also one from a notebook cell. Of this process's threads only the calling one is
    copied: ``fix_openmp`` cures the commonest harm of that. Random generators are copied too: torch and numpy draw the
    same numbers in every rank until ``fn`` sets a seed.

    Args, Returns, Raises: as ``spawn``.
    """
    flush_c()  # or the ranks would print once more what C code has printed here
    return _run("fork", Call(fn, args), nprocs, timeout, backend, threads, echo, FORKED)


class _Rank:
    """A rank as its parent sees it: its process, and the nameless files that it opens by their paths and writes."""

    def __init__(self, number: int, open_files: contextlib.ExitStack) -> None:
        files = [open_files.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)]  # noqa: SIM115
        self.number, (self.output, self.stacks, self.report) = number, files
        self.paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files]
        self.process: process.BaseProcess | None = None

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs. For a process that was not started there is nothing to wait."""
        return 0 if self.process is None else self.process.exitcode

    @property
    def reported(self) -> bool:
        return os.fstat(self.report.fileno()).st_size > 0

    @property
    def failed(self) -> bool:
        """It has ended badly, or without a report."""
        return self.code is not None and (self.code != 0 or not self.reported)

    def told(self) -> tuple[Any, ...]:
        """The report, see ``child.call``."""
        self.report.seek(0)
        return pickle.load(self.report)

    def signal(self, number: signal.Signals) -> None:
        """To the rank and to all processes that it started."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)
            if self.code is None:  # it may not lead a group yet
                with contextlib.suppress(OSError):
                    os.kill(self.process.pid, number)


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _run(
    method: str,
    call: Call,
    nprocs: int,
    timeout: float,
    backend: str | None,
    threads: int | None,
    echo: bool,
    remedy: str,
) -> list[Any]:
    """Start, wait, stop, print; then return or raise."""
    from torch.distributed import TCPStore

    _check(call.parts[0], nprocs, timeout, threads)
    deadline = time.monotonic() + timeout
    threads = threads or max(1, len(os.sched_getaffinity(0)) // nprocs)
    with contextlib.ExitStack() as open_files:
        ranks = [_Rank(number, open_files) for number in range(nprocs)]
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
                port, number = listener.getsockname()[1], listener.fileno()
                inherited = number if method == "fork" else None
                files, seconds = [rank.paths for rank in ranks], timeout + COLLECTIVE_EXTRA
                plan = Plan(call, nprocs, port, threads, backend, seconds, files, inherited)
                with STARTING:
                    started = _start(method, plan, ranks)  # may hold semaphores that spawned ranks look up by name
                    # Made after the forks, so that no rank inherits half a store (its thread would be missing).
                    # libuv, where it is torch's default, takes no socket that is bound already.
                    options: Any = {"wait_for_workers": False, "master_listen_fd": os.dup(number), "use_libuv": False}
                    store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=seconds), **options)
                _wait(ranks, deadline - time.monotonic(), lambda: all(rank.reported for rank in ranks))
                if all(rank.reported for rank in ranks):
                    _wait(ranks, LEAVE, lambda: all(rank.code is not None for rank in ranks))
                failure = _failure(ranks, timeout, remedy)
                del store, started
        finally:
            _stop(ranks)
            if echo:
                for rank in ranks:  # ``print``, so that a notebook shows it in the cell
                    for line in _text(rank.output).splitlines():
                        print(f"[rank {rank.number}] {line}")
                sys.stdout.flush()
        if failure is not None:
            raise failure
        return [rank.told()[1] for rank in ranks]


def _check(fn: Any, nprocs: Any, timeout: Any, threads: Any) -> None:
    """Wrong arguments, found before a process is started."""
    if not callable(fn):
        raise InputError(f"fn must be a function, it is {fn!r}")
    if not isinstance(nprocs, int) or nprocs < 1:
        raise InputError(f"nprocs must be a whole number of at least 1, it is {nprocs!r}")
    if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise InputError(f"timeout must be a number of seconds above 0, it is {timeout!r}")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads must be a whole number of at least 1, it is {threads!r}")
    if getattr(process.current_process(), "_inheriting", False):
        raise InputError(
            "a spawned rank runs the main script again, and the script calls spawn() at its top level",
            "Put the call under: if __name__ == '__main__':",
        )


def _start(method: str, plan: Plan, ranks: list[_Rank]) -> Any:
    """Let torch start the ranks. Libraries that a spawned one loads first take their threads from its environment."""
    from torch.multiprocessing.spawn import start_processes

    children, before = set(multiprocessing.active_children()), os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(plan.threads)
    try:
        started: Any = start_processes(rank_main, (plan,), len(ranks), join=False, start_method=method)
    except BaseException:  # Ctrl-C, or no more processes: torch does not say which have been started
        for child in set(multiprocessing.active_children()) - children:
            child.kill()
        raise
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        os.environ.update({} if before is None else {"OMP_NUM_THREADS": before})
        plan.call.picklers.clear()
    for rank, child in zip(ranks, started.processes, strict=True):
        rank.process = child
    return started


def _wait(ranks: list[_Rank], seconds: float, through: Callable[[], bool]) -> None:
    """Until they are through, one has failed, or time is up."""
    end = time.monotonic() + seconds
    while not through() and not any(rank.failed for rank in ranks) and (left := end - time.monotonic()) > 0:
        running = [rank.process.sentinel for rank in ranks if rank.process and rank.code is None]
        connection.wait(running, min(left, 0.05))  # a rank's own child may keep a sentinel from telling


def _stop(ranks: list[_Rank]) -> None:
    """End what still runs, first politely; then what the ranks have started and left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            rank.signal(number)
        end = time.monotonic() + GRACE
        while any(rank.code is None for rank in ranks) and time.monotonic() < end:
            time.sleep(0.01)
    for rank in ranks:
        with contextlib.suppress(ValueError):  # it still runs: only if even SIGKILL did not end it in time
            if rank.process is not None:
                with STARTING:  # a start in another thread looks through the children, and must not see half a close
                    rank.process.close()


def _failure(ranks: list[_Rank], timeout: float, remedy: str) -> BaseException | None:
    """The error to raise: the first failure, else the time limit, else None."""
    if failed := [rank for rank in ranks if rank.failed]:  # a death has left its report as it was made, empty
        rank = min(failed, key=lambda rank: os.fstat(rank.report.fileno()).st_mtime_ns)
        assert rank.code is not None
        return failure_of(rank.number, rank.code, rank.told() if rank.reported else (), _text(rank.output), remedy)
    if late := [rank for rank in ranks if not rank.reported]:
        return RanksTimedOut(_stacks_of(late), len(ranks), timeout, remedy)
    if late := [rank for rank in ranks if rank.code is None]:
        return RanksTimedOut(_stacks_of(late), len(ranks), LEAVE, "They have returned, but not ended.")
    return None


def _stacks_of(ranks: list[_Rank]) -> dict[int, str]:
    """Stacks of ranks that still run, innermost call first; of a rank that is not that far, a word why not.

    ``faulthandler`` writes them at the C level, so also out of a stuck call. A rank that has not come to ask for that
    dies of the signal, a moment before it would be ended anyway.
    """
    for rank in ranks:
        if rank.process is not None and rank.process.pid is not None and rank.code is None:
            with contextlib.suppress(OSError):
                os.kill(rank.process.pid, signal.SIGUSR1)
    time.sleep(PATIENCE)
    none = "  (it had not started Python code of ours yet)"
    return {rank.number: users_frames(_text(rank.stacks)) or none for rank in ranks}
