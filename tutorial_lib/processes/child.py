"""What runs inside a rank: its output, its life line, its process group, then the user's function.

The rank talks with its parent over one socket. It sends frames (kind, length, pickle):
READY (a stack can be asked for), then one of VALUE, ERROR, EXIT. After VALUE it waits for one byte: all ranks have
returned. Only then it ends, so that a rank which is through never looks like one that died.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NoReturn

READY, VALUE, ERROR, EXIT = b"R", b"V", b"E", b"X"
FRAME = struct.Struct("!cQ")
F_SETSIG = 10  # Linux; the module fcntl does not name it


@dataclass(frozen=True)
class Task:
    """What one rank must know; numbers of open files are those of the rank.

    Attributes:
        threads: OpenMP threads of the rank.
        backend: of the process group to make, or None.
        seconds: time limit of a collective.
        channel, lifeline, stacks, payload: open files; ``payload`` is -1 in a forked rank.
    """

    rank: int
    world_size: int
    port: int
    threads: int
    backend: str | None
    seconds: float
    channel: int
    lifeline: int
    stacks: int
    payload: int = -1

    def environment(self) -> dict[str, str]:
        """What torchrun would set, so that ``init_process_group("gloo")`` needs no address.

        TORCHELASTIC_USE_AGENT_STORE: every rank is a client of the parent's store; no rank has to bind a port.
        """
        return {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": str(self.threads),
            # Gloo would bind the address of the host name, which on a laptop may not even be reachable.
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        }

    def to_json(self) -> str:
        """For the command line of a spawned rank."""
        return json.dumps(asdict(self))


def flush_c() -> None:
    """Write out what C code has printed and the C library still holds."""
    ctypes.CDLL(None).fflush(None)


def end_with_parent(lifeline: int) -> None:
    """Let the kernel kill this rank's process group when the other end of a pipe closes.

    PR_SET_PDEATHSIG would not do: it fires when the *thread* that forked us ends, and reaches no child of ours.
    A thread of ours that waits would not do: C code that holds the interpreter lock could stop it from running.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":  # the parent had died before the kernel was asked
            os._exit(1)


def own_output(output: int) -> None:
    """Send file descriptors 1 and 2, and Python's streams over them, into a file. Standard input is empty."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    line_by_line()


def line_by_line() -> None:
    """Fresh text streams that pass on each line at once: in order with what C code writes, also before os._exit."""
    sys.stdin = open(os.dup(0), encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def forked_main(task: Task, output: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Start of a forked rank: forget the parent's signals, streams and process group."""
    os.setsid()
    end_with_parent(task.lifeline)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own_output(output)
    os.environ.update(task.environment())
    run_rank(task, lambda: (fn, args))


def spawned_main(text: str) -> None:
    """Start of a spawned rank: ``text`` is its Task as JSON. Output goes home from the first line on."""
    task = Task(**json.loads(text))
    end_with_parent(task.lifeline)
    line_by_line()
    run_rank(task, lambda: load_payload(task.payload))


def load_payload(payload: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Rebuild function and arguments. All ranks share the file's position, hence pread."""
    from multiprocessing import process, spawn

    length = os.fstat(payload).st_size
    parts, position = [], 0
    while position < length:
        parts.append(os.pread(payload, length - position, position))
        position += len(parts[-1])
    os.close(payload)
    preparation, function, arguments = pickle.loads(b"".join(parts))
    process.current_process()._inheriting = True  # calling spawn() now, at import, means: no __main__ guard
    try:
        spawn.prepare(preparation)
        fn = pickle.loads(function)
        return fn, tuple(pickle.loads(argument) for argument in arguments)
    finally:
        del process.current_process()._inheriting


def run_rank(task: Task, load: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> NoReturn:
    """Call the function and report. Ends the process."""
    channel = socket.socket(fileno=task.channel)
    channel.setblocking(True)
    faulthandler.register(signal.SIGUSR1, file=task.stacks, all_threads=True)
    send(channel, READY, b"")
    kind, body = call(task, load)
    flush_c()
    send(channel, kind, body)
    if kind == VALUE:
        channel.recv(1)
        leave()
    # Not a normal exit: it would first wait for peers that wait for this rank.
    flush_c()
    os._exit(1)


def call(task: Task, load: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> tuple[bytes, bytes]:
    """Kind and pickle of what the function returned or raised."""
    try:
        fn, args = load()
        limit_threads(task.threads)
        join_process_group(task)
        try:
            value = fn(task.rank, task.world_size, *args)
        except SystemExit as end:
            if end.code not in (0, None):
                return EXIT, pickle.dumps(end.code if isinstance(end.code, int) else str(end.code))
            value = None
        try:
            return VALUE, pickle.dumps(value)
        except Exception as error:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            raise TypeError(
                f"rank {task.rank} returned a {name}, which cannot be pickled and so cannot be sent to the parent "
                f"({type(error).__name__}: {error})"
            ) from error
    except BaseException as error:
        return ERROR, describe(error)


def describe(error: BaseException) -> bytes:
    """(name, traceback text, pickle of the exception or None). Only what can also be unpickled is sent as a pickle."""
    text = "".join(traceback.format_exception(type(error), error, cut_traceback(error.__traceback__)))
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


def cut_traceback(frames: Any) -> Any:
    """Without our own frames at its start."""
    start = frames
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        frames = frames.tb_next
    return frames or start


def send(channel: socket.socket, kind: bytes, body: bytes) -> None:
    """One frame. If the parent has gone there is nobody to tell; the life line ends us."""
    with contextlib.suppress(OSError):
        channel.sendall(FRAME.pack(kind, len(body)) + body)


def limit_threads(threads: int) -> None:
    """OMP_NUM_THREADS is read when a runtime is loaded: a torch that is here already must be told."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def join_process_group(task: Task) -> None:
    """With a backend: make the default process group. The addresses are in the environment."""
    if task.backend is None:
        return
    import torch
    import torch.distributed as dist

    limit_threads(task.threads)
    backend = task.backend
    if backend == "nccl":
        torch.cuda.set_device(task.rank)
        backend = "cpu:gloo,cuda:nccl"  # NCCL alone takes no CPU tensor: counts are summed on the CPU
    dist.init_process_group(backend, timeout=timedelta(seconds=task.seconds))


def leave() -> NoReturn:
    """End with exit code 0 once all ranks have returned: the kernel closes the connections, and no peer needs them.

    Not through ``destroy_process_group``: with torch 2.2.1 it hung in 2 of about 50 runs of DDP over four ranks
    (the main thread at its end, with another thread that has no Python frame: probably each waits for the other).
    """
    from multiprocessing import util

    util._exit_function()  # ends DataLoader workers, as the exit of every multiprocessing process does
    sys.stdout.flush()
    sys.stderr.flush()
    flush_c()
    os._exit(0)


def frames_in(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the complete frames out of what has arrived (the parent's side)."""
    while len(buffer) >= FRAME.size:
        kind, length = FRAME.unpack_from(buffer)
        if len(buffer) < FRAME.size + length:
            return
        body = bytes(buffer[FRAME.size : FRAME.size + length])
        del buffer[: FRAME.size + length]
        yield kind, body
