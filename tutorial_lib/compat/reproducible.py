"""Equal results from C code that reads memory before it writes it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

M_PERTURB = -6  # option of glibc's mallopt
ZEROS = 0xFF  # glibc fills with the complement
CACHED_SIZES = range(24, 1040, 16)  # glibc keeps up to 7 freed pieces of each of these sizes per thread,
CACHED_PIECES = 7  # and hands them out again without filling them


@contextlib.contextmanager
def fixed_fresh_memory() -> Iterator[None]:
    """Fill memory with zeros when it is allocated (with glibc; elsewhere this does nothing).

    The METIS inside DGL 2.1.0 behaves as if it read such memory: its random seed is always 4321, its input the same,
    and still two runs cut differently, also on one thread. With fresh memory filled they cut the same. This is a
    remedy for what was seen, not a guarantee: memory on the stack is not reached.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mallopt(M_PERTURB, ZEROS)
    # Held until the end, so that the pieces that are handed out unfilled are not to be had.
    held = [libc.malloc(size) for size in CACHED_SIZES for _ in range(CACHED_PIECES)]
    try:
        yield
    finally:
        libc.mallopt(M_PERTURB, 0)
        for piece in held:
            libc.free(piece)
