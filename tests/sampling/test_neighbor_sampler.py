"""Neighbors are sampled from local lists and by the machines that own the other nodes."""

import pytest
import torch
from row_support import FakeCluster

from tutorial_lib.sampling.neighbors import NeighborSampler

NEIGHBORS = {0: [3, 4], 1: [], 2: [4, 0, 1], 3: [1, 5], 4: [2], 5: []}


def lists_of(sampler: NeighborSampler, nodes: list[int], fanout: int) -> list[list[int]]:
    indptr, sources = sampler.sample(torch.tensor(nodes, dtype=torch.int32), fanout)
    return [sorted(each.tolist()) for each in sources.split(indptr.diff().tolist())]


@pytest.mark.parametrize("graphbolt", [False, True])
def test_neighbors_are_sampled_locally_and_by_owner(monkeypatch, graphbolt):
    """D4. Sampling does not change the cached adjacency.

    The budget suffices for the neighbors of node 4. Another machine samples the neighbors of node 3.
    """
    machines = FakeCluster(monkeypatch, NEIGHBORS, 0, 3, 6, graphbolt=graphbolt)
    sampler = NeighborSampler(machines.graph, 4, 2)
    assert (sampler.remote_nodes, sampler.remote_bytes, sampler.dtype) == (1, 4, torch.int32)
    cases = [([2, 1, 0, 4], []), ([3, 2, 1], [[3]]), ([1, 0, 3, 4], [[3]]), ([5, 3, 0], [[5, 3]]), ([], [])]
    for nodes, remote in cases:
        for fanout in (-1, 1):
            machines.requests.clear()
            found = lists_of(sampler, nodes, fanout)
            assert machines.asked == remote
            for node, sources in zip(nodes, found, strict=True):
                assert len(sources) == (len(NEIGHBORS[node]) if fanout < 0 else min(1, len(NEIGHBORS[node])))
                assert set(sources) <= set(NEIGHBORS[node])
    machines.requests.clear()
    for seed in (5, 5, 6):
        sampler.seed(seed)
        assert [len(lists_of(sampler, [3], 1)) for _hop in range(2)] == [1, 1]
    values = [request.seed for request in machines.requests]  # seeds of the servers, which depend on seed and hop
    assert (values[:2] == values[2:4], len(set(values))) == (True, 4)
    # The nodes of a hop are numbered, the destination nodes first.
    sources = torch.tensor([5, 2, 4, 5, 3], dtype=torch.int32)
    every, indices = sampler.compact(sources, torch.tensor([3, 2], dtype=torch.int32))
    assert every.tolist() == [3, 2, 4, 5]
    assert every[indices.long()].tolist() == sources.tolist()
    assert (sampler.scratch == -1).all()


def test_adjacency_of_most_used_nodes_is_cached(monkeypatch):
    """D4. The cached adjacency depends only on the partition and the budget.

    This part has nodes 0 to 3. Three of its edges start at node 5 and one at node 4. Node 6 is a neighbor of node 5.
    """
    neighbors = {0: [5], 1: [5, 4], 2: [5], 3: [1], 4: [0, 5], 5: [0, 6, 1], 6: [5], 7: []}
    cases = [(0, 3, []), (12, 3, [5]), (19, 3, [5]), (20, 2, [5, 4]), (20, 1, []), (100, 3, [4, 5, 6])]
    for budget, hops, kept in cases:
        machines = FakeCluster(monkeypatch, neighbors, 0, 4, 6, 8)  # the others are on two machines
        sampler = NeighborSampler(machines.graph, budget, hops)
        assert sampler.remote_nodes == len(kept)
        assert sampler.remote_bytes == 4 * sum(len(neighbors[node]) for node in kept)
        machines.requests.clear()
        assert lists_of(sampler, list(neighbors), -1) == [sorted(sources) for sources in neighbors.values()]
        assert sorted(node for asked in machines.asked for node in asked) == sorted({4, 5, 6, 7} - set(kept))
