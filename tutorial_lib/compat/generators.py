"""DGL's random numbers: the same seed draws the same in every process."""

from __future__ import annotations


def seed_dgl(value: int) -> None:
    """As ``dgl.seed``, and this thread gets the numbers of the first one.

    Each thread of DGL's has a generator that is seeded with the seed plus the thread's number, and DGL numbers threads
    as they come to their first seed. With two, in about one process of three the main thread came second, and the
    same seed drew other neighbours and another random cut. So this one comes first, alone.
    In a process whose other threads have drawn numbers of DGL's before, it comes too late: their numbers stay theirs.
    """
    import dgl
    from dgl.utils import get_num_threads, set_num_threads

    threads = get_num_threads()
    set_num_threads(1)
    dgl.seed(0)
    set_num_threads(threads)
    dgl.seed(value)
