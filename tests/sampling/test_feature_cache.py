"""The feature cache returns the rows of the tensor, and pulls as few rows as any cache of its size."""

from __future__ import annotations

from collections import deque

import pytest
import torch
import torch.nn.functional as F
from row_support import Book, Rows, Wire

from tutorial_lib.sampling.feature_cache import NEVER, FeatureCache


@pytest.mark.parametrize("where", ["shared memory", "elsewhere"])
@pytest.mark.parametrize("room", [0, 1, 3, 100])
def test_rows_are_those_of_the_tensor(monkeypatch, tmp_path, where, room):
    generator = torch.Generator().manual_seed(room)
    everything = torch.randn(60, 100, generator=generator)
    tensor = Rows(everything, 20, 45, shared=tmp_path / "rows" if where == "shared memory" else None)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 45), budget=room * 400)
    assert (table.used, table.asked, table.hits, table.look_ahead, table.most_ahead) == (0, 0, 0, 0, 32 * (room < 35))
    for _ in range(6):
        ids = torch.randint(60, (30,), generator=generator, dtype=torch.int32)
        assert torch.equal(table[ids], everything[ids.long()])
    assert table.used == min(room, 35)
    remote = [node for asked in tensor.asked for node in asked]
    assert all(not 20 <= node < 45 for node in remote)
    assert table.asked - table.hits == len(remote)
    if room == 100:
        assert len(remote) == len(set(remote))  # nothing is asked for twice


def fewest_pulls(batches, room):
    """Belady's rule on sets: of the rows that are here, the one that is needed last goes."""
    kept, pulls = set(), 0
    for now, batch in enumerate(batches):
        pulls += len(batch - kept)
        later = {
            row: min((k for k in range(now + 1, len(batches)) if row in batches[k]), default=10**9)
            for row in kept | batch
        }
        kept = set(sorted(later, key=lambda row: (later[row], row))[:room])
    return pulls


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("room", [1, 7, 20, 34])
def test_no_cache_of_its_size_pulls_fewer_rows(monkeypatch, room, early):
    """With every batch announced; each row is the tensor's, whatever has moved, and what the next batch has asked."""
    generator = torch.Generator().manual_seed(room)
    everything = torch.randn(60, 5, generator=generator)
    popular = torch.rand(60, generator=generator) ** 3 + 0.02
    batches = [torch.multinomial(popular, 24, generator=generator).int() for _ in range(40)]
    tensor = Rows(everything, 20, 25)
    wire = Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 25), budget=room * 20, most_ahead=40)
    for ids in batches:
        table.announce(ids)
    on_their_way = []
    for number, ids in enumerate(batches):
        if early and number == 0:
            table.request(ids)
        if early and number + 1 < len(batches):
            table.request(batches[number + 1])
        slots = table.slots(ids)
        on_their_way.append(len(wire.waiting))
        assert torch.equal(table.read(slots), everything[ids.long()])
    remote = [{node for node in ids.tolist() if not 20 <= node < 25} for ids in batches]
    assert sum(map(len, tensor.asked)) == fewest_pulls(remote, room)
    assert (max(on_their_way), on_their_way[-1]) == (2 * early, 0)  # a question to each of two machines


@pytest.mark.parametrize("period", [2, 3, 4])
def test_as_many_batches_are_announced_as_tell_when_each_kept_row_is_needed(monkeypatch, period):
    """Each batch comes again after so many, and there is room for them."""
    everything = torch.randn(60, 5)
    tensor = Rows(everything, 0, 10)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(0, 10), budget=10 * period * 20)
    batches = (torch.arange(10, 20) + 10 * (number % period) for number in range(30))
    waiting: deque[torch.Tensor] = deque()
    seen = []
    while True:
        while len(waiting) <= table.look_ahead and (batch := next(batches, None)) is not None:
            table.announce(batch)
            waiting.append(batch)
        if not waiting:
            break
        assert torch.equal(table[waiting[0]], everything[waiting.popleft()])
        seen.append(table.look_ahead)
    assert (len(seen), seen[0], seen[10:]) == (30, 0, [period - 1] * 20)


def test_fewer_batches_are_announced_when_fewer_would_tell():
    table = FeatureCache(Rows(torch.randn(60, 5), 0, 10), Book(0, 10), budget=200)
    table.look_ahead = 3
    table._announced.extend([(torch.empty(0), 0)] * 4)
    for last, expected in [(NEVER, 4), (NEVER, 4), (2, 4), (1, 3), (0, 2), (0, 1), (0, 0), (0, 0)]:
        table._adapt(last)
        assert table.look_ahead == expected


@pytest.mark.parametrize("early", [True, False])
def test_another_call_than_the_one_that_was_announced(monkeypatch, early):
    everything = torch.randn(60, 5)
    tensor = Rows(everything, 20, 25)
    wire = Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 25), budget=10 * 20)
    for first in (0, 30, 40):
        table.announce(torch.arange(first, first + 8))
        if early:
            table.request(torch.arange(first, first + 8))
        other = torch.arange(first + 4, first + 20)
        assert torch.equal(table[other], everything[other])
    table.announce(torch.arange(12))
    table.request(torch.arange(12))
    table.cancel()
    assert not wire.waiting


def test_own_rows_are_not_copied(tmp_path):
    tensor = Rows(torch.zeros(50, 100), 10, 40, shared=tmp_path / "rows")
    table = FeatureCache(tensor, Book(10, 40), budget=4000)
    tensor.local_partition[7] = 3.0
    assert torch.equal(table[torch.tensor([17])], torch.full((1, 100), 3.0))


@pytest.mark.parametrize("own", [(0, 0), (0, 60), (20, 25)])
def test_means_of_lists_of_slots(monkeypatch, own):
    """Lists with own rows, with rows of other machines, with both and with none, as embedding_bag computes them."""
    everything = torch.randn(60, 5)
    tensor = Rows(everything, *own)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(*own), budget=10 * 20)
    ids = torch.randint(60, (40,), dtype=torch.int32)
    ids[:10], ids[10:20] = 22, 50
    indptr = torch.tensor([0, 0, 5, 10, 15, 15, 30, 40, 40], dtype=torch.int32)
    expected = F.embedding_bag(ids, everything, indptr, mode="mean", include_last_offset=True)
    assert torch.allclose(table.mean(table.slots(ids), indptr), expected, atol=1e-6)


def test_a_part_without_nodes(monkeypatch):
    everything = torch.randn(9, 4)
    tensor = Rows(everything, 0, 0)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(0, 0), budget=1000)
    assert (table.capacity, table.row_bytes) == (9, 16)
    assert torch.equal(table[torch.tensor([3, 8, 3])], everything[[3, 8, 3]])
