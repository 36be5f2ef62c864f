"""Tests of ``sampling.py``."""

import os
from collections import Counter
from types import SimpleNamespace

import dgl
import pytest
import torch

from sampling import BatchSampler, NodeLoader, count_rows, make_block, sample_blocks, sample_csc

NEIGHBORS = {0: [1, 2, 3, 4], 1: [], 2: [0], 3: [2, 4], 4: [0]}
INDPTR = torch.tensor([0, 4, 4, 5, 7, 8])
INDICES = torch.tensor([1, 2, 3, 4, 0, 2, 4, 0])
BOOK = SimpleNamespace(partid=1, nid2partid=lambda nodes: (nodes >= 3).long())  # this machine stores 3, 4, ...


@pytest.mark.parametrize("fanout", [-1, 4, 9])
def test_all_neighbors(fanout):
    """With -1 or a large fan-out, each node keeps all its neighbors. Node 1 has none, so it has no edges."""
    sources, destinations = sample_csc(INDPTR, INDICES, torch.tensor([3, 1, 0]), fanout)
    got = (destinations.tolist(), sources[:2].sort().values.tolist(), sources[2:].sort().values.tolist())
    expected = ([3, 3, 0, 0, 0, 0], [2, 4], [1, 2, 3, 4])
    assert got == expected


def test_uniform():
    """The six pairs of neighbors of node 0 are equally likely, about 200 times each, and no neighbor occurs twice."""
    generator = torch.Generator().manual_seed(0)
    pairs = [sample_csc(INDPTR, INDICES, torch.tensor([0]), 2, generator)[0] for _ in range(1_200)]
    counts = Counter(tuple(pair.sort().values.tolist()) for pair in pairs)
    got = {pair: count if abs(count - 200) > 70 else "about 200" for pair, count in sorted(counts.items())}
    expected = dict.fromkeys([(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)], "about 200")
    assert got == expected


def test_the_generator_decides():
    """Pass the generator to torch, so that two generators with the same seed select the same edges."""
    nodes = torch.tensor([0, 3, 0, 0, 3, 0])
    runs = [sample_csc(INDPTR, INDICES, nodes, 1, torch.Generator().manual_seed(7))[0] for _ in range(8)]
    got = [run.tolist() for run in runs]
    expected = [got[0]] * 8
    assert got == expected


@pytest.mark.parametrize(
    ("sources", "destinations", "expected"),
    [
        ([9, 4, 2, 9, 5], [7, 7, 4, 4, 4], [[2, 1, 3, 2, 4], [0, 0, 1, 1, 1], [7, 4, 9, 2, 5]]),
        ([], [], [[], [], [7, 4]]),
    ],
)
def test_numbers_of_a_block(sources, destinations, expected):
    """The seeds 7 and 4 become 0 and 1, and other sources 2, 3, ... An empty tensor of IDs needs the dtype int64."""
    edges = [torch.tensor(ends, dtype=torch.int64) for ends in (sources, destinations)]
    block = make_block(*edges, torch.tensor([7, 4]))
    got = [ids.tolist() for ids in (*block.edges(), block.srcdata[dgl.NID], block.dstdata[dgl.NID])]
    expected = [*expected, [7, 4]]
    assert got == expected


def first_neighbors(nodes, fanout):
    """Return the edges from the first ``fanout`` neighbors of each node, or from all of them with -1."""
    count = 4 if fanout == -1 else fanout
    edges = [(source, node) for node in nodes.tolist() for source in NEIGHBORS[node][:count]]
    return torch.tensor([source for source, _ in edges]), torch.tensor([node for _, node in edges])


@pytest.mark.parametrize(
    ("fanouts", "expected"),
    [
        ([1], [([3, 2], 1)]),
        ([-1, 1], [([3, 2, 4, 0], 3), ([3, 2], 1)]),
        ([2, -1, -1], [([3, 2, 4, 0, 1], 6), ([3, 2, 4, 0], 4), ([3, 2, 4], 2)]),
    ],
)
def test_blocks_of_several_hops(fanouts, expected):
    """The last fan-out is for the hop at the seeds. The next hop samples for all source nodes of this block."""
    blocks = sample_blocks(first_neighbors, torch.tensor([3]), fanouts)
    got = [(block.srcdata[dgl.NID].tolist(), block.num_edges()) for block in blocks]
    assert got == expected


def test_edges_of_a_dist_graph(tiny):
    """Call dgl.distributed.sample_neighbors with this fan-out, and return the edges of the frontier."""
    sources, destinations = BatchSampler(tiny, [-1]).sample_neighbors(torch.tensor([2, 3]), -1)
    one, _ = BatchSampler(tiny, [-1]).sample_neighbors(torch.tensor([2, 3]), 1)
    got = sorted(zip(sources.tolist(), destinations.tolist())), len(one)
    expected = [(0, 2), (2, 3), (3, 2), (4, 3)], 2
    assert got == expected


@pytest.mark.parametrize("part", [0, 1])
def test_local_edges(monkeypatch, part):
    """With local_only, keep the edges whose source has the part of this machine. The destination does not matter."""
    frontier = dgl.graph(([0, 3, 2, 4], [2, 2, 3, 3]))
    monkeypatch.setattr(dgl.distributed, "sample_neighbors", lambda *_args, **_options: frontier)
    book = SimpleNamespace(partid=part, nid2partid=BOOK.nid2partid)
    g = SimpleNamespace(get_partition_book=lambda: book, sample_neighbors=dgl.distributed.sample_neighbors)
    sources, destinations = BatchSampler(g, [-1], local_only=True).sample_neighbors(torch.tensor([2, 3]), -1)
    got = sorted(zip(sources.tolist(), destinations.tolist()))
    expected = [[(0, 2), (2, 3)], [(3, 2), (4, 3)]][part]
    assert got == expected


def test_a_batch(tiny):
    """Turn the list of IDs into a tensor, and use self.sample_neighbors and self.fanouts for its blocks."""
    process, blocks = BatchSampler(tiny, [-1, 1, -1])([3])
    got = process == os.getpid(), len(blocks), blocks[-1].dstdata[dgl.NID].tolist(), blocks[-1].num_edges()
    expected = True, 3, [3], 2
    assert got == expected


def no_edges(ids):
    """Return a batch without edges, as a sampler in process 41 does."""
    nothing = torch.tensor([], dtype=torch.int64)
    return 41, [make_block(nothing, nothing, torch.tensor(ids))]


@pytest.mark.parametrize(
    ("count", "drop_last", "expected"), [(10, False, [4, 4, 2]), (8, False, [4, 4]), (10, True, [4, 4])]
)
def test_length_of_the_loader(tiny, count, drop_last, expected):
    """The length is the number of batches that an epoch yields, also in the second epoch."""
    loader = NodeLoader(no_edges, torch.arange(count), 4, drop_last=drop_last)
    epochs = [[len(seeds) for _, seeds, _ in loader] for _epoch in range(2)]
    got, expected = (len(loader), epochs), (len(expected), [expected] * 2)
    assert got == expected


def test_the_loader_shuffles(tiny):
    """Pass shuffle to DistDataLoader. Without it, the seeds keep their order."""
    orders = []
    for shuffle in (False, True):
        torch.manual_seed(1)
        batches = list(NodeLoader(no_edges, torch.arange(20), 7, shuffle))
        orders.append(torch.cat([seeds for _, seeds, _ in batches]).tolist())
    got = [order == list(range(20)) for order in orders], sorted(orders[1])
    expected = [True, False], list(range(20))
    assert got == expected


def test_batches_of_the_loader(tiny):
    """The input nodes are the sources of the first block, and the seeds are the destinations of the last block."""
    loader = NodeLoader(BatchSampler(tiny, [-1, -1]), torch.tensor([3, 0]), 1, shuffle=False)
    got = [(sorted(inputs.tolist()), seeds.tolist(), len(blocks)) for inputs, seeds, blocks in loader]
    expected = [([0, 2, 3, 4, 5], [3], 2), ([0, 1, 2, 3, 5], [0], 2)]
    assert got == expected


def test_who_has_sampled(tiny):
    """Count a batch in sampled_by[process], where process comes from the sampler."""
    processes = iter([41, 42, 41])
    sampler = BatchSampler(tiny, [1])
    loader = NodeLoader(lambda ids: (next(processes), sampler(ids)[1]), torch.tensor([0, 2, 3]), 1)
    list(loader)
    got, expected = dict(loader.sampled_by), {41: 2, 42: 1}
    assert got == expected


def test_remote_rows():
    """Compare the part of each input node with the part of this machine, and add the numbers of all batches."""
    batches = [(torch.tensor(inputs), torch.tensor([0]), None) for inputs in ([0, 1, 3, 4], [5, 2, 0], [4, 6])]
    got = count_rows(BOOK, batches)
    expected = (9, 4)
    assert tuple(map(int, got)) == expected
