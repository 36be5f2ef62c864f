"""What glibc's malloc does with memory: training keeps what is freed, METIS gets zeros. Elsewhere nothing changes.

By default the C library gives large pieces back to the kernel when they are freed. The next step asks for them again,
and the kernel hands out pages filled with zeros, one page fault for each 4 kB: tens of thousands an epoch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX, PERTURB = -1, -2, -3, -4, -6  # M_... in malloc.h of glibc
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one
TOP = 64 * 2**20
ZEROS = 0xFF  # glibc fills with the complement
CACHED_SIZES = range(24, 1040, 16)  # glibc keeps up to 7 freed pieces of each of these sizes per thread,
CACHED_PIECES = 7  # and hands them out again without filling them


def keep_freed_memory() -> bool:
    """Memory that was freed stays with the process; False where there is no ``mallopt`` (another C library).

    The process then shrinks only by ``give_back_freed_memory``; what is resident at the peak does not change.
    """
    libc = ctypes.CDLL(None)
    wanted = {TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: TOP, MMAP_THRESHOLD: LARGEST_MMAP_THRESHOLD, MMAP_MAX: 0}
    return hasattr(libc, "mallopt") and all(libc.mallopt(option, value) == 1 for option, value in wanted.items())


def give_back_freed_memory() -> None:
    """What was kept so far goes to the kernel: before work of another kind, which needs pieces of other sizes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def large_pages() -> dict[str, str]:
    """Environment of a process whose malloc asks the kernel for pages of 2 MB (glibc 2.35; ignored by older ones).

    With it, a trainer's first step takes a few hundred page faults instead of a hundred thousand. A user's own
    ``GLIBC_TUNABLES`` stays.
    """
    return {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@contextlib.contextmanager
def fixed_fresh_memory() -> Iterator[None]:
    """Fill memory with zeros when it is allocated: equal results from C code that reads before it writes.

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
    libc.mallopt(PERTURB, ZEROS)
    # Held until the end, so that the pieces that are handed out unfilled are not to be had.
    held = [libc.malloc(size) for size in CACHED_SIZES for _ in range(CACHED_PIECES)]
    try:
        yield
    finally:
        libc.mallopt(PERTURB, 0)
        for piece in held:
            libc.free(piece)
