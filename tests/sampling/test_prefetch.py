"""The sampling thread makes items ahead of their use."""

import threading
import time

import pytest
import torch

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.sampling import prefetch


@pytest.mark.parametrize("depth", [0, 2])
def test_items_are_made_ahead_of_their_use(depth):
    made = []

    def items():
        for number in range(5):
            made.append((number, threading.current_thread().name))
            yield number

    found = prefetch.prefetch(items, depth, "an item")
    assert next(found) == 0
    prefetch.run(lambda: None, "the thread to finish its work")
    assert [number for number, _ in made] == list(range(depth + 1))
    assert list(found) == [1, 2, 3, 4]
    assert {name for _, name in made} == {"batches_0"}


def test_the_thread_closes_a_generator_that_fails_or_is_left_early():
    """An error is raised in its place, and the thread continues."""
    closed = []

    def items():
        try:
            yield from range(3)
            raise ValueError("no answer")
        finally:
            closed.append(threading.current_thread().name)

    found = prefetch.prefetch(items, 2, "an item")
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no answer"):
        next(found)
    found = prefetch.prefetch(items, 2, "an item")
    assert next(found) == 0
    found.close()
    assert closed == ["batches_0"] * 2


def test_an_item_that_is_not_made_in_time_is_named(monkeypatch):
    monkeypatch.setattr(prefetch, "WAIT_SECONDS", 0.1)
    found = prefetch.prefetch(lambda: (time.sleep(0.5) for _ in range(1)), 1, "the next batch")
    with pytest.raises(WaitedTooLong, match=r"waited 0\.1 s for the next batch, which a thread fetches from the serv"):
        next(found)


def test_there_is_one_sampling_thread_with_one_openmp_thread():
    """D2. More OpenMP threads would number the nodes of a block in the order in which they find them."""
    from dgl.utils import get_num_threads

    found = {
        prefetch.run(lambda: (threading.get_ident(), torch.get_num_threads(), get_num_threads()), "it") for _ in "ab"
    }
    ((thread, *counts),) = found
    assert thread != threading.get_ident()
    assert counts == [1, 1]
