"""``spawn`` and ``fork`` run a function in several processes as if it were one call.

The parent starts the ranks, waits until one has failed or all have ended, stops the remaining ones, prints their
output, and raises the first failure.
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

COLLECTIVE_EXTRA_SECONDS = 30.0  # seconds. A collective must not time out before the parent has collected the stacks
GRACE_SECONDS = 2.0  # seconds between SIGTERM and SIGKILL
LEAVE_SECONDS = 30.0  # seconds for ranks to end after all functions have returned
STACK_SECONDS = 1.0  # seconds for a stack to be written
FORKED = (
    "If this process has used OpenMP, a forked rank with more than one thread hangs at its first parallel region. "
    "Decorate its function with fix_openmp. If this process has used CUDA, a forked rank cannot use it."
)
# Only one thread at a time starts ranks, because all threads share os.environ, and a fork while another thread creates
# a store would copy an incomplete store.
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
    """Call ``fn(rank, world_size, *args)`` in ``nprocs`` new Python processes and return the results in rank order.

    The ranks meet at a ``TCPStore`` of the parent. Its socket is bound before, so no other program can take its port.
    The variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...) are set, so ``init_process_group("gloo")`` works in
    ``fn``. However the call ends, no process remains, because each rank leads a process group, and the kernel kills
    this group when the parent ends.

    Args:
        fn: a function that a new interpreter can import, so not one of a notebook cell, a lambda or an inner function.
        nprocs: number of ranks, at least 1.
        args: pickled for each rank. Tensors are in shared memory, so all ranks see what a rank writes to one.
        timeout: time limit in seconds, including the start of the processes.
        backend: create a process group ("gloo", "nccl") before ``fn`` is called. None: do not create one.
            With "nccl", rank k uses GPU k, and gloo runs the collectives of CPU tensors (run with one GPU only).
        threads: OpenMP threads per rank. None: the CPUs of this process divided by ``nprocs``.
        echo: print the output of all ranks (Python and C code, both streams) at the end, in rank order.

    Returns:
        The result of each rank (None after ``sys.exit(0)``).

    Raises:
        InputError: an argument is wrong or cannot be pickled. No process was started.
        RanksTimedOut: the time limit was reached. The error has the stacks of the ranks.
        RankFailed: a rank ended without a result (``os._exit``, a signal, ``sys.exit(2)``), or its exception cannot be
            pickled.
        Exception: the exception of the first failed rank. ``__cause__`` has the rank's traceback.
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
    """Like ``spawn``, but the ranks are forks of this process, which share its memory until they write to it.

    ``fn`` may be any function, also of a notebook cell, and nothing is pickled. A fork copies only the calling thread.
    ``fix_openmp`` repairs the most common problem of this. Random generators are copied, too, so torch and numpy
    generate the same numbers in every rank until ``fn`` sets a seed.

    Args, Returns, Raises: see ``spawn``.
    """
    flush_c()  # otherwise, the ranks would print the buffered output of C code again
    return _run("fork", Call(fn, args), nprocs, timeout, backend, threads, echo, FORKED)


class _Rank:
    """A rank in its parent: its process, and nameless files that the rank opens and writes."""

    def __init__(self, number: int, open_files: contextlib.ExitStack) -> None:
        files = [open_files.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3)]  # noqa: SIM115
        self.number = number
        self.output, self.stacks, self.report = files
        self.paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files]
        self.process: process.BaseProcess | None = None

    @property
    def code(self) -> int | None:
        """Exit code, or None while the process runs. A process that was not started counts as ended."""
        return 0 if self.process is None else self.process.exitcode

    @property
    def reported(self) -> bool:
        return os.fstat(self.report.fileno()).st_size > 0

    @property
    def failed(self) -> bool:
        """Whether the rank ended with an error or without a report."""
        return self.code is not None and (self.code != 0 or not self.reported)

    def read_report(self) -> tuple[Any, ...]:
        """Return the report, see ``child.call_function``."""
        self.report.seek(0)
        return pickle.load(self.report)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to all processes that it started."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)
            if self.code is None:  # it may not lead a group yet
                with contextlib.suppress(OSError):
                    os.kill(self.process.pid, number)


def read_text(file: Any) -> str:
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
    """Start the ranks, wait, stop them, print their output, and return the results or raise an error."""
    from torch.distributed import TCPStore

    _check(call.parts[0], nprocs, timeout, threads)
    deadline = time.monotonic() + timeout
    threads = threads or max(1, len(os.sched_getaffinity(0)) // nprocs)
    with contextlib.ExitStack() as open_files:
        ranks = [_Rank(number, open_files) for number in range(nprocs)]
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
                port = listener.getsockname()[1]
                number = listener.fileno()
                inherited = number if method == "fork" else None
                files = [rank.paths for rank in ranks]
                seconds = timeout + COLLECTIVE_EXTRA_SECONDS
                plan = Plan(call, nprocs, port, threads, backend, seconds, files, inherited)
                with STARTING:
                    started = _start(method, plan, ranks)  # may hold semaphores that spawned ranks open by name
                    # The store starts after the forks, because no rank may copy a store without its thread.
                    # libuv, the default of newer torch, does not accept a bound socket.
                    options: Any = {"wait_for_workers": False, "master_listen_fd": os.dup(number), "use_libuv": False}
                    store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=seconds), **options)
                _wait(ranks, deadline - time.monotonic(), lambda: all(rank.reported for rank in ranks))
                if all(rank.reported for rank in ranks):
                    _wait(ranks, LEAVE_SECONDS, lambda: all(rank.code is not None for rank in ranks))
                failure = _failure(ranks, timeout, remedy)
                del store, started
        finally:
            _stop(ranks)
            if echo:
                for rank in ranks:  # ``print`` shows the output in the cell of a notebook
                    for line in read_text(rank.output).splitlines():
                        print(f"[rank {rank.number}] {line}")
                sys.stdout.flush()
        if failure is not None:
            raise failure
        return [rank.read_report()[1] for rank in ranks]


def _check(fn: Any, nprocs: Any, timeout: Any, threads: Any) -> None:
    """Raise an error for wrong arguments before a process is started."""
    if not callable(fn):
        raise InputError(f"fn must be a function, but is {fn!r}")
    if not isinstance(nprocs, int) or nprocs < 1:
        raise InputError(f"nprocs must be an integer of at least 1, but is {nprocs!r}")
    if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise InputError(f"timeout must be a positive number of seconds, but is {timeout!r}")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads must be an integer of at least 1, but is {threads!r}")
    if getattr(process.current_process(), "_inheriting", False):
        raise InputError(
            "a spawned rank runs the main script again, and the script calls spawn() at its top level",
            "Put the call under: if __name__ == '__main__':",
        )


def _start(method: str, plan: Plan, ranks: list[_Rank]) -> Any:
    """Let torch start the ranks. Libraries that a spawned rank loads first take their threads from its environment."""
    from torch.multiprocessing.spawn import start_processes

    children = set(multiprocessing.active_children())
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(plan.threads)
    try:
        started: Any = start_processes(rank_main, (plan,), len(ranks), join=False, start_method=method)
    except BaseException:  # Ctrl-C, or the limit of processes: torch does not report the processes that it has started
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
    """Wait until all ranks have ended, one has failed, or the time limit is reached."""
    end = time.monotonic() + seconds
    while not through() and not any(rank.failed for rank in ranks) and (left := end - time.monotonic()) > 0:
        running = [rank.process.sentinel for rank in ranks if rank.process and rank.code is None]
        connection.wait(running, min(left, 0.05))  # a child of a rank may keep a sentinel open


def _stop(ranks: list[_Rank]) -> None:
    """Stop the running ranks, first with SIGTERM, and then the processes that they have started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            rank.signal(number)
        end = time.monotonic() + GRACE_SECONDS
        while any(rank.code is None for rank in ranks) and time.monotonic() < end:
            time.sleep(0.01)
    for rank in ranks:
        with contextlib.suppress(ValueError):  # even SIGKILL did not end the process in time
            if rank.process is not None:
                with STARTING:  # a start in another thread checks the children, and must not see a half-closed one
                    rank.process.close()


def _failure(ranks: list[_Rank], timeout: float, remedy: str) -> BaseException | None:
    """Return the first failure, or the error of the time limit, or None."""
    if failed := [rank for rank in ranks if rank.failed]:  # a killed rank has an empty report
        rank = min(failed, key=lambda rank: os.fstat(rank.report.fileno()).st_mtime_ns)
        assert rank.code is not None
        return failure_of(
            rank.number, rank.code, rank.read_report() if rank.reported else (), read_text(rank.output), remedy
        )
    if late := [rank for rank in ranks if not rank.reported]:
        return RanksTimedOut(_stacks_of(late), len(ranks), timeout, remedy)
    if late := [rank for rank in ranks if rank.code is None]:
        return RanksTimedOut(
            _stacks_of(late), len(ranks), LEAVE_SECONDS, "Their functions returned, but the processes did not exit."
        )
    return None


def _stacks_of(ranks: list[_Rank]) -> dict[int, str]:
    """Return the stacks of running ranks, innermost call first, or the reason why a rank has none.

    ``faulthandler`` writes them in C code, so it also works in a call that hangs. If a rank has not registered the
    handler yet, the signal ends it.
    """
    for rank in ranks:
        if rank.process is not None and rank.process.pid is not None and rank.code is None:
            with contextlib.suppress(OSError):
                os.kill(rank.process.pid, signal.SIGUSR1)
    time.sleep(STACK_SECONDS)
    no_stack = "  (the rank had not started its Python code)"
    return {rank.number: users_frames(read_text(rank.stacks)) or no_stack for rank in ranks}
