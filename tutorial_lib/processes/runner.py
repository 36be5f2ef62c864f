"""``spawn`` and ``fork``: run a function in several processes as if it were one call."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import process
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.processes.child import Plan, flush_c, rank_main
from tutorial_lib.processes.collecting import PARENT_ENDS, Rank, dismiss, failure_of, stop, wait
from tutorial_lib.processes.passing import Payload
from tutorial_lib.processes.safety import fork_safety

COLLECTIVE_EXTRA = 30.0  # seconds: a collective must not give up before we have asked the ranks where they are


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
    return _run("spawn", fn, tuple(args), nprocs, timeout, backend, threads, echo, "")


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
    copied; ``fork_safety()`` tells whether that is harmless now, ``fix_openmp`` cures the commonest harm. Random
    generators are copied too: torch and numpy draw the same numbers in every rank until ``fn`` sets a seed.

    Args, Returns, Raises: as ``spawn``.
    """
    safety = fork_safety()
    remedy = "" if safety.fork else "Before the fork: " + "; ".join(safety.reasons)
    flush_c()  # or the ranks would print once more what C code has printed here
    return _run("fork", fn, tuple(args), nprocs, timeout, backend, threads, echo, remedy)


def _run(
    method: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    nprocs: int,
    timeout: float,
    backend: str | None,
    threads: int | None,
    echo: bool,
    remedy: str,
) -> list[Any]:
    """Start, wait, stop, print; then return or raise."""
    _check(fn, nprocs, timeout, threads)
    deadline = time.monotonic() + timeout
    threads = threads or max(1, len(os.sched_getaffinity(0)) // nprocs)
    ranks = [Rank(rank) for rank in range(nprocs)]
    payload = Payload(fn, args)
    try:
        try:
            with _listening() as (listener, port):
                ends = [rank.ends for rank in ranks]
                plan = Plan(nprocs, port, threads, backend, timeout + COLLECTIVE_EXTRA, payload, ends)
                started = _start(method, plan, ranks)  # holds semaphores that spawned ranks look up by their names
                # Made after the forks, so that no rank inherits half a store (its thread would be missing).
                store = _serve(listener, port, timeout)
                wait(ranks, deadline)
                failure = failure_of(ranks, timeout, remedy) or dismiss(ranks)
                del store, started
        finally:
            stop(ranks)
            if echo:
                _show(ranks)
        if failure is not None:
            raise failure
        return [pickle.loads(rank.report[1:]) for rank in ranks if rank.report is not None]
    finally:
        for rank in ranks:
            rank.close()


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
    if sys.platform != "linux":
        raise InputError(f"tutorial_lib.processes needs Linux, this is {sys.platform}")
    if getattr(process.current_process(), "_inheriting", False):
        raise InputError(
            "a spawned rank runs the main script again, and the script calls spawn() at its top level",
            "Put the call under: if __name__ == '__main__':",
        )


def _start(method: str, plan: Plan, ranks: list[Rank]) -> Any:
    """Let torch start the ranks. Libraries that a spawned one loads first take their threads from its environment."""
    from torch.multiprocessing.spawn import start_processes

    before = os.environ.get("OMP_NUM_THREADS")
    if method == "spawn":
        os.environ["OMP_NUM_THREADS"] = str(plan.threads)
    try:
        started = start_processes(rank_main, (plan,), len(ranks), join=False, start_method=method)
    finally:
        if method == "spawn":
            os.environ.pop("OMP_NUM_THREADS")
            os.environ.update({} if before is None else {"OMP_NUM_THREADS": before})
        plan.payload.picklers.clear()
    for rank, child in zip(ranks, started.processes, strict=True):
        rank.process = child
        rank.close_rank_ends()
    return started


@contextlib.contextmanager
def _listening() -> Iterator[tuple[socket.socket, int]]:
    """A socket on the loopback address, at a port that the kernel chose."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        PARENT_ENDS.add(listener)
        try:
            yield listener, listener.getsockname()[1]
        finally:
            PARENT_ENDS.discard(listener)


def _serve(listener: socket.socket, port: int, timeout: float) -> Any:
    """The store through which the ranks find each other, on a socket that is bound already."""
    from torch.distributed import TCPStore

    limit = timedelta(seconds=timeout)
    for extra in ({}, {"use_libuv": False}):  # some versions take a socket only without libuv
        fd = os.dup(listener.fileno())
        try:
            return TCPStore("127.0.0.1", port, None, True, limit, wait_for_workers=False, master_listen_fd=fd, **extra)
        except (RuntimeError, NotImplementedError):
            with contextlib.suppress(OSError):
                os.close(fd)
            if extra:
                raise
    return None


def _show(ranks: list[Rank]) -> None:
    """Print the ranks' output, each line with the rank's number. ``print``, so that a notebook shows it in the cell."""
    for rank in ranks:
        for line in rank.ends.output.text().splitlines():
            print(f"[rank {rank.rank}] {line}")
    sys.stdout.flush()
