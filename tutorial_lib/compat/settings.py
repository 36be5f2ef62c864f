"""Settings of DGL 2.1.0, torch and glibc that have no option: seeds, the sleep of a server, imports, freed memory."""

import ctypes
import sys
import time
from importlib import import_module
from types import ModuleType, SimpleNamespace

import dgl
import numpy as np
import torch
from dgl.utils import get_num_threads, set_num_threads

# M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD (32 MiB is the largest value) and M_MMAP_MAX of glibc's malloc.h
KEEP_MEMORY = {-1: 2**31 - 1, -2: 64 << 20, -3: 32 << 20, -4: 0}


def derive_seed(*numbers: int) -> int:
    """Return a seed that depends on all numbers and their order. It has 31 bits, because DGL takes a C int."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) & 0x7FFFFFFF


def seed_dgl(value: int) -> None:
    """Seed DGL so that the calling thread uses DGL's first generator, unless another thread has sampled before.

    DGL seeds a generator per thread with the seed plus the number of the thread, and numbers the threads in the order
    of their first seed. Without this order, the main thread got the second number in about one process of three.
    """
    threads = get_num_threads()
    set_num_threads(1)
    dgl.seed(0)
    set_num_threads(threads)
    dgl.seed(value)


def shorten_server_sleep() -> None:
    """Let a server sleep 0.3 s instead of 3 s for its clients, which are ready within milliseconds."""
    shorter = {"sleep": lambda seconds: time.sleep(0.3 if seconds == 3 else seconds)}
    vars(import_module("dgl.distributed.rpc_server"))["time"] = SimpleNamespace(**{**vars(time), **shorter})


def keep_freed_memory() -> None:
    """Keep freed memory in this process. Otherwise, page faults make an epoch 3 to 47 % longer."""
    for option, value in KEEP_MEMORY.items():
        ctypes.CDLL(None).mallopt(option, value)


def release_freed_memory() -> None:
    """Return freed memory to the kernel, before work that needs blocks of other sizes."""
    ctypes.CDLL(None).malloc_trim(0)


class LazyDynamo(ModuleType):
    """Placeholder for ``torch._dynamo`` with the two names that optimizers use. Other names import the real module."""

    disable = staticmethod(lambda fn, *_args, **_options: fn)
    graph_break = staticmethod(lambda: None)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def postpone_dynamo() -> None:
    """Delay the import of ``torch._dynamo`` and sympy, which takes as long as torch and DGL, until its first use."""
    if "torch._dynamo" not in sys.modules:
        sys.modules["torch._dynamo"] = torch._dynamo = LazyDynamo("torch._dynamo")  # type: ignore[assignment]
