"""The code of a rank: its output, lifeline and process group, then the user's function.

A rank writes the result or the exception of its function to its report. Before it ends, it waits until the functions
of all ranks have returned, so no rank sees the regular end of another rank as a failure.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import io
import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, util
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.logs import PEER_GONE

SETTLE_SECONDS = 0.3  # seconds for the cause to be reported, before a rank reports that its peer is gone
F_SETSIG, PR_SET_PDEATHSIG = 10, 1  # constants of Linux that Python does not define


class Call:
    """A function and its arguments. A forked rank shares them with its parent, and a spawned rank gets pickles.

    Each argument is pickled separately, so an error can name it. It is unpickled after the rank's output is redirected.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.parts: list[Any] = [fn, *args]
        self.pickles: list[bytes] = []
        self.picklers: list[Any] = []  # a pickler keeps its objects alive until the rank has loaded them

    def load(self) -> list[Any]:
        """Return the function and its arguments."""
        return [pickle.loads(one) for one in self.pickles] or self.parts

    def __getstate__(self) -> dict[str, Any]:
        name = getattr(self.parts[0], "__qualname__", repr(self.parts[0]))
        pickles = []
        for number, value in enumerate(self.parts):
            stream = io.BytesIO()
            self.picklers.append(_Pickler(stream))
            try:
                self.picklers[-1].dump(value)
            except InputError:
                raise
            except Exception as error:
                what = f"argument {number - 1} of {name}, a {type(value).__qualname__},"
                remedy = "Pass a path or a number instead, and create the object in the rank. Or use fork."
                if number == 0:
                    what = f"the function {name}"
                    remedy = "Define it with def at the top level of a module."
                raise InputError(f"{what} cannot be pickled ({type(error).__name__}: {error})", remedy) from error
            pickles.append(stream.getvalue())
        return {"pickles": pickles}


class _Pickler(ForkingPickler):
    def reducer_override(self, obj: Any) -> Any:
        """Refuse objects of a ``__main__`` that a new interpreter cannot run again, as in Jupyter or with ``-c``."""
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ == "__main__":
            main = sys.modules["__main__"]
            if getattr(main, "__spec__", None) is None and not os.path.exists(getattr(main, "__file__", None) or ""):
                raise InputError(
                    f"{obj.__qualname__} is defined in a notebook cell (module __main__), "
                    "and a spawned process is a new interpreter that cannot import it",
                    "Write it to a module, for example with %%writefile ranks.py, and import it. Or use fork.",
                )
        return NotImplemented


@dataclass(frozen=True)
class Plan:
    """The settings of all ranks.

    Attributes:
        port: port of the parent's store, where the ranks meet.
        threads: OpenMP threads of each rank.
        backend: backend of the process group, or None for no process group.
        seconds: time limit of a collective.
        files: for each rank the files of its output, its stacks and its report. They have no names in a folder.
        inherited: number of a socket in a forked rank that only the parent may keep open.
    """

    call: Call
    world_size: int
    port: int
    threads: int
    backend: str | None
    seconds: float
    files: list[list[str]]
    inherited: int | None


def rank_main(rank: int, plan: Plan) -> None:
    """Start of a rank, called by torch. Reset signals and streams, call the function and report its result."""
    output, stacks, report = plan.files[rank]
    os.setsid()
    end_with_parent()
    if plan.inherited is not None:
        os.close(plan.inherited)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    redirect_output(output)
    os.environ.update(environment(rank, plan))
    faulthandler.register(signal.SIGUSR1, file=os.open(stacks, os.O_WRONLY), all_threads=True)
    returned, report_bytes = call_function(rank, plan)
    with open(report, "wb") as file:
        file.write(report_bytes)
    if returned:
        wait_until_all_have_returned(plan)
        end: Any = util
        end._exit_function()  # as at a normal exit: ends the workers of DataLoaders and calls finalizers
    # A normal exit would wait for peers that wait for this rank. With torch 2.2.1, destroy_process_group
    # hung in 2 of about 50 runs of DDP on four ranks. The kernel closes the connections.
    sys.stdout.flush()
    sys.stderr.flush()
    flush_c()
    os._exit(0 if returned else 1)


def end_with_parent() -> None:
    """Let the kernel kill this rank's process group when the parent's end of a pipe closes.

    torch has set PR_SET_PDEATHSIG, and this function resets it. This signal is sent when the *thread* that started the
    rank ends, and it would end the rank before the kernel closes the pipe and kills the children, too. A waiting thread
    is no alternative, because C code that holds the interpreter lock can block it. (Ranks that are forked later also
    hold the other end of the pipe. They end first.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(parent.sentinel, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if connection.wait([parent.sentinel], 0):  # the parent ended before this call
        os._exit(1)


def redirect_output(path: str) -> None:
    """Redirect file descriptors 1 and 2 to a file, and make standard input empty.

    New text streams write each line immediately, so the order agrees with that of C code, also before ``os._exit``.
    """
    for name, flags, numbers in ((path, os.O_WRONLY | os.O_APPEND, (1, 2)), (os.devnull, os.O_RDONLY, (0,))):
        opened = os.open(name, flags)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(os.dup(0), encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def flush_c() -> None:
    """Flush the output buffers of the C library."""
    ctypes.CDLL(None).fflush(None)


def environment(rank: int, plan: Plan) -> dict[str, str]:
    """Return the variables of torchrun, with which ``init_process_group("gloo")`` needs no address."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(plan.port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # all ranks are clients of the parent's store, and none binds a port
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": str(plan.threads),
        # Gloo would bind the address of the host name, which on a laptop may not be reachable.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
    }


def call_function(rank: int, plan: Plan) -> tuple[bool, bytes]:
    """Return whether the function returned, and a pickle of ("value", value), ("exit", code) or ("error", ...)."""
    try:
        fn, *args = plan.call.load()
        join_process_group(rank, plan)
        try:
            value = fn(rank, plan.world_size, *args)
        except SystemExit as end:
            if end.code not in (0, None):
                return False, pickle.dumps(("exit", end.code if isinstance(end.code, int) else str(end.code)))
            value = None
        try:
            return True, pickle.dumps(("value", value))
        except Exception as error:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            raise TypeError(
                f"rank {rank} returned a {name}, which cannot be pickled and sent to the parent "
                f"({type(error).__name__}: {error})"
            ) from error
    except BaseException as error:
        return False, pickle.dumps(("error", *describe(error)))


def join_process_group(rank: int, plan: Plan) -> None:
    """Create the default process group if there is a backend. The environment has the addresses."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(plan.threads)  # OMP_NUM_THREADS would have no effect, because torch is already loaded
    backend = plan.backend
    if backend == "nccl":
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"  # NCCL does not support CPU tensors, and counts are summed on the CPU
    if backend is not None:
        dist.init_process_group(backend, timeout=timedelta(seconds=plan.seconds))


def describe(error: BaseException) -> tuple[str, str, bytes | None]:
    """Return name and traceback of an exception, and its pickle if it can be unpickled. Consequences are delayed."""
    frames = error.__traceback__  # without frames of this module at its start
    while frames is not None and os.path.dirname(frames.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    pickled = None
    with contextlib.suppress(Exception):
        plain = pickle.dumps(error)
        if isinstance(error, Exception) and type(pickle.loads(plain)) is type(error):
            pickled = plain
    if re.search(PEER_GONE, str(error)):
        time.sleep(SETTLE_SECONDS)
    return f"{type(error).__name__}: {error}".removesuffix(": "), text, pickled


def wait_until_all_have_returned(plan: Plan) -> None:
    """Wait until the functions of all ranks have returned."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", plan.port, is_master=False, timeout=timedelta(seconds=plan.seconds))
    if store.add("returned", 1) == plan.world_size:
        store.set("all have returned", "")
    store.wait(["all have returned"])
