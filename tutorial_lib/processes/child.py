"""What runs inside a rank: its output, its life line, its process group, then the user's function.

The rank writes its report (VALUE, ERROR or EXIT, then a pickle) to a file and tells its parent over a pipe that it is
there. After VALUE it waits for an answer: all ranks have returned. Only then it ends, so that a rank which is through
never looks like one that died.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import util
from multiprocessing.connection import Connection

from tutorial_lib.processes.passing import Payload, SharedFile

VALUE, ERROR, EXIT = b"V", b"E", b"X"
F_SETSIG, PR_SET_PDEATHSIG = 10, 1  # of Linux; Python does not name them


@dataclass(frozen=True)
class Ends:
    """A rank's ends of its pipes, and the files that it writes."""

    channel: Connection
    lifeline: Connection
    output: SharedFile
    stacks: SharedFile
    report: SharedFile


@dataclass(frozen=True)
class Plan:
    """What the ranks must know.

    Attributes:
        threads: OpenMP threads of each rank.
        backend: of the process group to make, or None.
        seconds: time limit of a collective.
        ends: of rank 0, 1, ...
    """

    world_size: int
    port: int
    threads: int
    backend: str | None
    seconds: float
    payload: Payload
    ends: list[Ends]

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun would set, so that ``init_process_group("gloo")`` needs no address.

        TORCHELASTIC_USE_AGENT_STORE: every rank is a client of the parent's store; no rank has to bind a port.
        """
        return {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": str(self.threads),
            # Gloo would bind the address of the host name, which on a laptop may not even be reachable.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        }


def rank_main(rank: int, plan: Plan) -> None:
    """Start of a rank, called by torch: forget the parent's signals and streams; call the function and report."""
    ends = plan.ends[rank]
    os.setsid()
    end_with_parent(ends.lifeline.fileno())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own_output(ends.output.number)
    os.environ.update(plan.environment(rank))
    faulthandler.register(signal.SIGUSR1, file=ends.stacks.number, all_threads=True)
    kind, body = call(rank, plan)
    flush_c()
    with open(ends.report.number, "wb", closefd=False) as file:
        file.write(kind + body)
    with contextlib.suppress(OSError):  # if the parent has gone there is nobody to tell; the life line ends us
        ends.channel.send_bytes(b"done")
    if kind != VALUE:
        flush_c()
        os._exit(1)  # a normal exit would first wait for peers that wait for this rank
    with contextlib.suppress(OSError, EOFError):
        ends.channel.recv_bytes()
    # multiprocessing ends DataLoader workers and calls this last. The kernel closes the connections, and no peer needs
    # them. Not ``destroy_process_group``: with torch 2.2.1 it hung in 2 of about 50 runs of DDP over four ranks.
    util.Finalize(None, end_at_once, exitpriority=-1000)


def end_at_once() -> None:
    """End with exit code 0, without the destructors of a normal exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    flush_c()
    os._exit(0)


def flush_c() -> None:
    """Write out what C code has printed and the C library still holds."""
    ctypes.CDLL(None).fflush(None)


def end_with_parent(lifeline: int) -> None:
    """Let the kernel kill this rank's process group when the other end of a pipe closes.

    PR_SET_PDEATHSIG, which torch has set, is taken back: it fires when the *thread* that started us ends, and ends us
    before the kernel closes the pipe and kills our children too. A thread of ours that waits would not do: C code
    that holds the interpreter lock could stop it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":  # the parent had died before the kernel was asked
            os._exit(1)


def own_output(output: int) -> None:
    """Send file descriptors 1 and 2 into a file; standard input is empty.

    Fresh text streams pass on each line at once: in order with what C code writes, also before ``os._exit``.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((output, 1), (output, 2), (null, 0)):
        os.dup2(source, number)
    os.close(null)
    sys.stdin = open(os.dup(0), encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def call(rank: int, plan: Plan) -> tuple[bytes, bytes]:
    """Kind and pickle of what the function returned or raised."""
    try:
        fn, args = plan.payload.load()
        join_process_group(rank, plan)
        try:
            value = fn(rank, plan.world_size, *args)
        except SystemExit as end:
            if end.code not in (0, None):
                return EXIT, pickle.dumps(end.code if isinstance(end.code, int) else str(end.code))
            value = None
        try:
            return VALUE, pickle.dumps(value)
        except Exception as error:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            raise TypeError(
                f"rank {rank} returned a {name}, which cannot be pickled and so cannot be sent to the parent "
                f"({type(error).__name__}: {error})"
            ) from error
    except BaseException as error:
        return ERROR, describe(error)


def join_process_group(rank: int, plan: Plan) -> None:
    """With a backend: make the default process group. The addresses are in the environment."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(plan.threads)  # OMP_NUM_THREADS is read when a runtime is loaded, and torch is here already
    backend = plan.backend
    if backend is None:
        return
    if backend == "nccl":
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"  # NCCL alone takes no CPU tensor: counts are summed on the CPU
    dist.init_process_group(backend, timeout=timedelta(seconds=plan.seconds))


def describe(error: BaseException) -> bytes:
    """(name, traceback text, pickle of the exception or None). Only what can also be unpickled is sent as a pickle."""
    frames = error.__traceback__  # without our own at its start
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    pickled = None
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):
            plain = pickle.dumps(error)
            if type(pickle.loads(plain)) is type(error):
                pickled = plain
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be made)"
    return pickle.dumps((f"{type(error).__name__}: {message}" if message else type(error).__name__, text, pickled))
