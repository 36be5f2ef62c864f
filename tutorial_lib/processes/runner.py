"""``spawn`` and ``fork``: run a function in several processes as if it were one call."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.processes.collecting import failure_of, wait
from tutorial_lib.processes.failures import RankFailed, RanksTimedOut, describe_exit
from tutorial_lib.processes.safety import fork_safety
from tutorial_lib.processes.stacks import ask_for_stacks
from tutorial_lib.processes.starting import (
    PARENT_ENDS,
    Started,
    make_payload,
    read_all,
    start,
    start_forked,
    start_spawned,
)

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
COLLECTIVE_EXTRA = 30.0  # seconds: a collective must not give up before we have asked the ranks where they are
LEAVE = 30.0  # seconds for the end of a rank that has returned


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
        args: pickled once. Tensors go through shared memory: a rank that writes to one writes to everybody's.
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
    check(fn, nprocs, timeout, threads)
    payload, keep = make_payload(fn, tuple(args))
    try:
        begin = partial(start_spawned, keep=keep)
        return run(begin, nprocs, timeout, backend, threads, echo, lambda: "", payload)
    finally:
        for file in (payload, *keep):
            os.close(file)


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
    check(fn, nprocs, timeout, threads)
    safety = fork_safety()

    def remedy() -> str:
        return "" if safety.fork else "Before the fork: " + "; ".join(safety.reasons)

    return run(partial(start_forked, fn=fn, args=tuple(args)), nprocs, timeout, backend, threads, echo, remedy, -1)


def check(fn: Any, nprocs: Any, timeout: Any, threads: Any) -> None:
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


def run(
    begin: Callable[..., Any],
    nprocs: int,
    timeout: float,
    backend: str | None,
    threads: int | None,
    echo: bool,
    remedy: Callable[[], str],
    payload: int,
) -> list[Any]:
    """Start, wait, stop, print; then return or raise."""
    deadline = time.monotonic() + timeout
    settings = {
        "world_size": nprocs,
        "threads": threads or max(1, len(os.sched_getaffinity(0)) // nprocs),
        "backend": backend,
        "seconds": timeout + COLLECTIVE_EXTRA,
        "payload": payload,
    }
    ranks: list[Started] = []
    try:
        try:
            with listening() as (listener, port):
                for rank in range(nprocs):
                    ranks.append(start({**settings, "rank": rank, "port": port}, begin))
                # Made after the forks, so that no rank inherits half a store (its thread would be missing).
                store = serve(listener, port, timeout)
                wait(ranks, deadline)
                failure = failure_of(ranks, timeout, remedy)
                if failure is None:
                    failure = dismiss(ranks)
                del store
        finally:
            stop(ranks)
            if echo:
                show(ranks)
        if failure is not None:
            raise failure
        return [pickle.loads(rank.report[1]) for rank in ranks if rank.report is not None]
    finally:
        for rank in ranks:
            rank.close()


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    """A socket on the loopback address, at a port that the kernel chose."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    PARENT_ENDS.add(listener)
    try:
        yield listener, listener.getsockname()[1]
    finally:
        PARENT_ENDS.discard(listener)
        listener.close()


def serve(listener: socket.socket, port: int, timeout: float) -> Any:
    """The store through which the ranks find each other, on a socket that is bound already."""
    import torch.distributed as dist

    if not dist.is_available():
        return None
    options: list[dict[str, Any]] = [{}, {"use_libuv": False}]  # some versions take a socket only without libuv
    for number, extra in enumerate(options):
        fd = os.dup(listener.fileno())
        try:
            return dist.TCPStore(
                "127.0.0.1",
                port,
                None,
                True,
                timedelta(seconds=timeout),
                wait_for_workers=False,
                master_listen_fd=fd,
                **extra,
            )
        except (RuntimeError, NotImplementedError):
            with contextlib.suppress(OSError):
                os.close(fd)
            if number == len(options) - 1:
                raise
    return None


def dismiss(ranks: list[Started]) -> BaseException | None:
    """All have returned: let them go, and look how they end."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            rank.channel.send(b"g")
    limit = time.monotonic() + LEAVE
    late = wait_for_exit(ranks, limit)
    if late:
        stacks = ask_for_stacks(late)
        return RanksTimedOut(
            [rank.rank for rank in late], len(ranks), LEAVE, stacks, "They have returned, but not ended."
        )
    for rank in ranks:
        if code := rank.poll():
            what = f"returned its result, then {describe_exit(code)}"
            return RankFailed(rank.rank, what, code, read_all(rank.output))
    return None


def wait_for_exit(ranks: list[Started], limit: float) -> list[Started]:
    """Those that still run at ``limit``."""
    while (late := [rank for rank in ranks if rank.poll() is None]) and time.monotonic() < limit:
        time.sleep(0.01)
    return late


def stop(ranks: list[Started]) -> None:
    """End what still runs, first politely; then what the ranks have started and left."""
    late = [rank for rank in ranks if rank.poll() is None]
    for rank in late:
        rank.signal_group(signal.SIGTERM)
    wait_for_exit(late, time.monotonic() + GRACE)
    for rank in ranks:
        rank.signal_group(signal.SIGKILL)
    wait_for_exit(late, time.monotonic() + GRACE)


def show(ranks: list[Started]) -> None:
    """Print the ranks' output, each line with the rank's number. ``print``, so that a notebook shows it in the cell."""
    for rank in ranks:
        for line in read_all(rank.output).splitlines():
            print(f"[rank {rank.rank}] {line}")
    sys.stdout.flush()
