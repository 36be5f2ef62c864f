"""Memory that was freed stays with the process: each step of training asks for the same amounts again.

By default the C library gives large pieces back to the kernel when they are freed. The next step asks for them again,
and the kernel hands out pages filled with zeros, one page fault for each 4 kB: tens of thousands an epoch.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4  # M_... in malloc.h of glibc
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one
TOP = 64 * 2**20


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep what is freed; False where there is no ``mallopt`` (another C library).

    The process then never shrinks below its peak; what is resident at the peak does not change.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    wanted = {TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: TOP, MMAP_THRESHOLD: LARGEST_MMAP_THRESHOLD, MMAP_MAX: 0}
    return all(mallopt(option, value) == 1 for option, value in wanted.items())
