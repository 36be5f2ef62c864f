"""Tests of ``cache.py``. A table replaces the DistTensor, so no machines are needed."""

from types import SimpleNamespace

import pytest
import torch

from cache import FeatureCache
from support.processes import fork

BOOK = SimpleNamespace(partid=1, nid2partid=lambda ids: (ids < 4).long())  # this machine has the nodes 0 to 3


class Table:
    """Replaces a DistTensor of ten nodes. ``reads`` are the IDs of each read."""

    def __init__(self, width=3):
        self.rows, self.reads = torch.arange(10.0 * width).reshape(10, width), []
        self.shape, self.dtype = self.rows.shape, self.rows.dtype

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, ids):
        assert len(ids) > 0, "a DistTensor rejects an empty tensor of IDs"
        self.reads.append(ids.tolist())
        return self.rows[ids].clone()


def new_cache(capacity):
    table = Table()
    return table, FeatureCache(table, BOOK, capacity * 12 + 11)  # a row has 12 bytes


def read(cache, *batches):
    return [cache[torch.tensor(batch, dtype=torch.int64)] for batch in batches]


BATCHES = [0, 9, 5, 1], [5, 7, 9, 2], [8, 7, 6, 3], [9, 5], []


def test_rows_are_those_of_the_table():
    """Return the row of each node in the order of the IDs, cached or not, also for no IDs."""
    table, cache = new_cache(3)
    got = [rows.tolist() for rows in read(cache, *BATCHES)]
    expected = [table.rows[list(batch)].tolist() for batch in BATCHES]
    assert got == expected


def test_cached_rows_are_not_read_again():
    """Read all other rows at once. A batch whose rows are all in the cache needs no read."""
    table, cache = new_cache(3)
    read(cache, *BATCHES)
    got = [sorted(ids) for ids in table.reads]
    expected = [[0, 1, 5, 9], [2, 7], [3, 6, 8]]
    assert got == expected


def test_only_remote_rows_are_cached():
    """Rows of this machine are in shared memory, so they need no place in the cache."""
    _, cache = new_cache(6)
    read(cache, *BATCHES)
    got = (cache.slots >= 0).nonzero().flatten().tolist(), cache.used
    expected = [5, 6, 7, 8, 9], 5
    assert got == expected


def test_full_cache():
    """Cache the first rows that fit, and later ones no more. A cached row stays."""
    _, cache = new_cache(3)
    read(cache, *BATCHES)
    got = (cache.slots >= 0).nonzero().flatten().tolist(), cache.used, cache.rows.shape[0]
    expected = [5, 7, 9], 3, 3
    assert got == expected


def test_insert():
    """Write the rows to the next free slots, and store the slot of each node."""
    _, cache = new_cache(3)
    rows = torch.arange(12.0).reshape(4, 3)
    cache.insert(torch.tensor([8]), rows[:1])
    cache.insert(torch.tensor([5, 7, 6]), rows[1:])
    got = cache.rows.tolist(), cache.slots.tolist(), cache.used
    expected = rows[:3].tolist(), [-1, -1, -1, -1, -1, 1, -1, 2, 0, -1], 3
    assert got == expected


def test_hits_and_requests():
    """Count remote rows only. A request is a hit if the row was in the cache before the read."""
    _, cache = new_cache(3)
    counts = []
    for batch in BATCHES:
        read(cache, batch)
        counts.append((cache.hits, cache.requests))
    got, expected = counts, [(0, 2), (2, 5), (3, 8), (5, 10), (5, 10)]
    assert got == expected


def test_fill():
    """Cache the remote nodes with the most neighbors in one read, which is no request. ``degrees`` has all nodes."""
    table, cache = new_cache(3)
    cache.fill(torch.tensor([90, 80, 70, 60, 3, 5, 1, 9, 2, 7]))
    (rows,) = read(cache, [9, 7, 5])
    got = (cache.slots >= 0).nonzero().flatten().tolist(), len(table.reads), rows.tolist(), (cache.hits, cache.requests)
    expected = [5, 7, 9], 1, table.rows[[9, 7, 5]].tolist(), (3, 3)
    assert got == expected


def test_fill_of_a_large_cache():
    """If the cache has more slots than there are remote rows, it holds all of them."""
    _, cache = new_cache(9)
    cache.fill(torch.ones(10, dtype=torch.int64))
    got, expected = (cache.slots >= 0).nonzero().flatten().tolist(), [4, 5, 6, 7, 8, 9]
    assert got == expected


@pytest.mark.parametrize(("owner", "capacity"), [(1, 3), (0, 0)])
def test_fill_without_rows(owner, capacity):
    """Without remote nodes or without room for a row, read nothing."""
    table, book = Table(), SimpleNamespace(partid=1, nid2partid=lambda ids: torch.full_like(ids, owner))
    FeatureCache(table, book, capacity * 12).fill(torch.ones(10, dtype=torch.int64))
    got, expected = table.reads, []
    assert got == expected


def test_hit_rate_of_all_ranks():
    """Sum the hits and the requests of all ranks before the division, because ranks have different numbers of rows."""

    def run(rank, _size):
        _, cache = new_cache(6)
        read(cache, [9, 5], *[[9], [5, 9, 6, 7]] * rank)
        return cache.hit_rate()

    got, expected = fork(run, 2, backend="gloo", threads=1, timeout=60), [3 / 9] * 2
    assert got == expected
