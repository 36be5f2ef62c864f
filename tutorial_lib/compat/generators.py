"""Seeds of random generators: equal numbers give equal draws in every process."""

from __future__ import annotations

import numpy as np


def derive_seed(*numbers: int) -> int:
    """Return 31 bits (DGL takes a C int) that depend on all numbers and their order."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) & 0x7FFFFFFF


def seed_dgl(value: int) -> None:
    """Seed DGL so that this thread always gets the numbers of DGL's first generator.

    Each thread of DGL has a generator that is seeded with the seed plus the number of the thread, and DGL numbers the
    threads in the order of their first seed. With two threads, the main thread came second in about one process of
    three, and the same seed sampled other neighbors. Therefore this thread is seeded first, alone. If other threads of
    the process have sampled before, they keep their numbers.
    """
    import dgl
    from dgl.utils import get_num_threads, set_num_threads

    threads = get_num_threads()
    set_num_threads(1)
    dgl.seed(0)
    set_num_threads(threads)
    dgl.seed(value)
