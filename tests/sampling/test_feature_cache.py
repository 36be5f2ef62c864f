"""The feature cache returns the rows of the tensor, and pulls as few rows as any cache of its size."""

import pytest
import torch
import torch.nn.functional as F
from row_support import FakeConnection, FakeDistTensor, FakePartitionBook

from tutorial_lib.sampling.feature_cache import FeatureCache


def slots_of(cache, ids):
    cache.cancel()
    cache.announce(ids)
    cache.request()
    return cache.receive_rows()


@pytest.mark.parametrize(("room", "begin", "end"), [(0, 20, 45), (3, 20, 45), (100, 20, 45), (100, 0, 0)])
def test_rows_are_those_of_the_tensor(monkeypatch, room, begin, end):
    """The rows of this machine are neither pulled nor copied. A part can be empty."""
    generator, remote = torch.Generator().manual_seed(room), 60 - (end - begin)
    everything = torch.randn(60, 100, generator=generator)
    tensor = FakeDistTensor(everything, begin, end)
    FakeConnection(monkeypatch, tensor)
    cache = FeatureCache(tensor, FakePartitionBook(begin, end), budget=room * 400)
    assert (cache.row_bytes, cache.capacity) == (400, min(room, remote))
    for _ in range(6):
        ids = torch.randint(60, (30,), generator=generator, dtype=torch.int32)
        assert torch.equal(cache.read(slots_of(cache, ids)), everything[ids.long()])
    assert cache.used == min(room, remote, cache.num_requested - cache.hits)
    pulled = [node for asked in tensor.asked for node in asked]
    assert all(not begin <= node < end for node in pulled)
    assert cache.num_requested - cache.hits == len(pulled)
    if room == 100:
        assert len(pulled) == len(set(pulled))  # nothing is pulled twice
    tensor.local_partition[:] = 3.0
    assert (cache.read(slots_of(cache, torch.arange(begin, end))) == 3.0).all()


def fewest_pulls(batches, room):
    """Count the pulls of Belady's rule, which evicts the row whose next use is last."""
    kept, pulls = set(), 0
    for now, batch in enumerate(batches):
        pulls += len(batch - kept)
        rest = batches[now + 1 :]
        later = {row: next((k for k, ids in enumerate(rest) if row in ids), 10**9) for row in kept | batch}
        kept = set(sorted(later, key=lambda row: (later[row], row))[:room])
    return pulls


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("room", [1, 7, 20, 34])
def test_cache_pulls_as_few_rows_as_belady(monkeypatch, room, early):
    """All batches are announced. Rows are right while other rows move and the next batch is requested."""
    generator = torch.Generator().manual_seed(room)
    everything = torch.randn(60, 5, generator=generator)
    popular = torch.rand(60, generator=generator) ** 3 + 0.02
    batches = [torch.multinomial(popular, 24, generator=generator).int() for _ in range(40)]
    tensor = FakeDistTensor(everything, 20, 25)
    wire = FakeConnection(monkeypatch, tensor)
    cache = FeatureCache(tensor, FakePartitionBook(20, 25), budget=room * 20)
    for ids in batches:
        cache.announce(ids)
    waiting = []
    if early:
        cache.request()
    for number, ids in enumerate(batches):
        if number + early < len(batches):
            cache.request()
        slots = cache.receive_rows()
        waiting.append(len(wire.waiting))
        assert torch.equal(cache.read(slots), everything[ids.long()])
        assert sum(cache.last_batch_counts) == len(ids)
    remote = [{node for node in ids.tolist() if not 20 <= node < 25} for ids in batches]
    assert sum(map(len, tensor.asked)) == fewest_pulls(remote, room)
    assert (max(waiting), waiting[-1]) == (2 * early, 0)  # a request to each of two machines


@pytest.mark.parametrize("early", [True, False])
def test_read_and_cancel_drop_announced_batches(monkeypatch, early):
    everything = torch.randn(60, 5)
    tensor = FakeDistTensor(everything, 20, 25)
    wire = FakeConnection(monkeypatch, tensor)
    cache = FeatureCache(tensor, FakePartitionBook(20, 25), budget=10 * 20)
    for first in (0, 30, 40):
        cache.announce(torch.arange(first, first + 8))
        if early:
            cache.request()
        other = torch.arange(first + 4, first + 20)
        assert torch.equal(cache.read(slots_of(cache, other)), everything[other])
    cache.announce(torch.arange(12))
    cache.request()
    cache.cancel()
    assert not wire.waiting


@pytest.mark.parametrize("own", [(0, 0), (0, 60), (20, 25)])
def test_means_over_cache_slots(monkeypatch, own):
    """The means of local, remote, mixed and no rows equal those of embedding_bag."""
    everything = torch.randn(60, 5)
    tensor = FakeDistTensor(everything, *own)
    FakeConnection(monkeypatch, tensor)
    cache = FeatureCache(tensor, FakePartitionBook(*own), budget=10 * 20)
    ids = torch.randint(60, (40,), dtype=torch.int32)
    ids[:10], ids[10:20] = 22, 50
    indptr = torch.tensor([0, 0, 5, 10, 15, 15, 30, 40, 40], dtype=torch.int32)
    expected = F.embedding_bag(ids, everything, indptr, mode="mean", include_last_offset=True)
    assert torch.allclose(cache.mean(slots_of(cache, ids), indptr), expected, atol=1e-6)
