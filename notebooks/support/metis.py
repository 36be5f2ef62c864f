"""Quiet and repeatable calls of the METIS inside DGL, for lessons and tests."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PERTURB = -6  # M_PERTURB in malloc.h of glibc
ZEROS = 0xFF  # glibc fills with the complement
CACHED_SIZES = range(24, 1040, 16)  # glibc keeps up to 7 freed blocks of each size per thread and returns them unfilled
CACHED_BLOCKS = 7


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send standard output and standard error to a file, including the output of C++ code."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(path.open("a"))
        for number in (1, 2):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(log.fileno(), number)
        # Under Jupyter and pytest, Python's streams do not end at descriptors 1 and 2.
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        yield


@contextlib.contextmanager
def fixed_fresh_memory() -> Iterator[None]:
    """Fill memory with zeros when it is allocated, so that METIS cuts a graph in the same way each time.

    The METIS inside DGL 2.1.0 behaves as if it read memory before writing to it. With equal seeds and inputs, two runs
    cut differently, also on one thread. With filled memory they agree. Memory on the stack is not filled.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mallopt(PERTURB, ZEROS)
    held = [libc.malloc(size) for size in CACHED_SIZES for _ in range(CACHED_BLOCKS)]
    try:
        yield
    finally:
        libc.mallopt(PERTURB, 0)
        for block in held:
            libc.free(block)
