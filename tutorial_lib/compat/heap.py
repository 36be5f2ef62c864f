"""Memory that was freed stays with the process: each step of training asks for the same amounts again.

By default the C library gives large pieces back to the kernel when they are freed. The next step asks for them again,
and the kernel hands out pages filled with zeros, one page fault for each 4 kB: tens of thousands an epoch.
"""

from __future__ import annotations

import ctypes
import os

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


def large_pages() -> dict[str, str]:
    """Environment of a process whose malloc asks the kernel for pages of 2 MB (glibc 2.35; ignored by older ones).

    With it, a trainer's first step takes a few hundred page faults instead of a hundred thousand. A user's own
    ``GLIBC_TUNABLES`` stays.
    """
    return {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
