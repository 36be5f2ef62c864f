"""Settings of DGL 2.1.0 and of glibc that have no option: seeds, the sleep of a server, and freed memory."""

import ctypes
import inspect
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

SERVER_SLEEP = "time.sleep(3)  # wait for clients' receivers ready\n"
# M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD (32 MiB is the largest value) and M_MMAP_MAX of glibc's malloc.h
KEEP_MEMORY = {-1: 2**31 - 1, -2: 64 << 20, -3: 32 << 20, -4: 0}


def derive_seed(*numbers: int) -> int:
    """Return 31 bits (DGL takes a C int) that depend on all numbers and their order."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) & 0x7FFFFFFF


def seed_dgl(value: int) -> None:
    """Seed DGL so that this thread always gets the numbers of DGL's first generator.

    DGL seeds a generator per thread with the seed plus the number of the thread, and numbers the threads in the order
    of their first seed. With two threads, the main thread came second in about one process of three. Therefore this
    thread is seeded first, alone. If other threads of the process have sampled before, they keep their numbers.
    """
    import dgl
    from dgl.utils import get_num_threads, set_num_threads

    threads = get_num_threads()
    set_num_threads(1)
    dgl.seed(0)
    set_num_threads(threads)
    dgl.seed(value)


def connect_soon() -> None:
    """Let a server of this process sleep 0.3 s instead of 3 s before it connects to its clients.

    The clients are ready within milliseconds, and DGL tries a failed connection again. If DGL's server has another
    text, nothing changes.
    """
    rpc_server: Any = import_module("dgl.distributed.rpc_server")
    text = inspect.getsource(rpc_server.start_server)

    def sleep(seconds: float) -> None:
        time.sleep(0.3 if seconds == 3 else seconds)

    if text.count(SERVER_SLEEP) == text.count("time.sleep(3)") == 1:
        rpc_server.time = SimpleNamespace(**{**vars(time), "sleep": sleep})


def keep_freed_memory() -> None:
    """Keep freed memory in this process until ``give_back_freed_memory``, without changing its peak.

    By default, glibc returns large blocks to the kernel, which fills each new page with zeros. The tens of thousands of
    page faults cost 3 to 9 % of an epoch.
    """
    for option, value in KEEP_MEMORY.items():
        ctypes.CDLL(None).mallopt(option, value)


def give_back_freed_memory() -> None:
    """Return freed memory to the kernel, before work that needs blocks of other sizes."""
    ctypes.CDLL(None).malloc_trim(0)
