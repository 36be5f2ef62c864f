"""Equal results from C code that reads memory before it writes it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

M_PERTURB = -6  # option of glibc's mallopt
ZEROS = 0xFF  # glibc fills with the complement


@contextlib.contextmanager
def fixed_fresh_memory() -> Iterator[None]:
    """Fill memory with zeros when it is allocated.

    The METIS inside DGL 2.1.0 behaves as if it read such memory: its random seed is always 4321, its input the same,
    and still two runs cut differently, also on one thread. With fresh memory filled they cut the same.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", lambda _option, _value: None)  # glibc only
    set_option(M_PERTURB, ZEROS)
    try:
        yield
    finally:
        set_option(M_PERTURB, 0)
