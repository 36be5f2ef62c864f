"""Neighbors are sampled from local lists and by the machines that own the other nodes."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch
from row_support import NEIGHBOURS, PartBook, Rows, part_with_halo

from tutorial_lib.sampling import neighbor_sampler
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbor_sampler import Neighbors, NeighborSampler, append_lists, most_used


def test_neighbours_are_drawn_here_and_by_the_machine_that_has_the_node(monkeypatch):
    """D4. Samples do not change which lists are here.

    The budget holds the list of node 4 and not that of node 3, which its own machine samples.
    """
    asked: list[list[int]] = []

    def ask(_book, ids, request):
        asked.append(request(ids).ids.tolist())
        return {0: 0}, [torch.arange(len(ids))]

    def answers_to(_asked, _what):
        edges = [(source, node) for node in asked[-1] for source in NEIGHBOURS[node]]
        source, node = (torch.tensor(ends) for ends in zip(*edges, strict=True))
        return [SimpleNamespace(sources=source, destinations=node)]

    monkeypatch.setattr(neighbor_sampler, "request", ask)
    monkeypatch.setattr(neighbor_sampler, "receive", answers_to)
    monkeypatch.setattr(neighbor_sampler, "fetch_neighbors", lambda _book, ids: answer_lists(ids))
    graph = SimpleNamespace(get_partition_book=PartBook, num_nodes=lambda: 6, local_partition=part_with_halo(4, 3))
    lists = NeighborSampler(graph, 4, 2)
    assert (lists.remote_nodes, lists.remote_bytes, lists.dtype) == (1, 4, torch.int32)
    assert lists.list_of(torch.arange(6)).tolist() == [0, 1, 2, -1, 3, -1]
    for nodes, remote in [([2, 1, 0, 4], []), ([3, 2, 1], [[3]]), ([1, 0, 3, 4], [[3]])]:
        asked.clear()
        drawn = lists.sample(torch.tensor(nodes, dtype=torch.int32), -1)
        assert asked == remote
        ends = drawn.indptr.tolist()
        found = [sorted(drawn.sources[begin:end].tolist()) for begin, end in pairwise(ends)]
        assert found == [sorted(NEIGHBOURS[node]) for node in nodes]
        few = lists.sample(torch.tensor(nodes, dtype=torch.int32), 1)
        assert few.indptr.diff().tolist() == [
            len(NEIGHBOURS[node]) if node == 3 else min(1, len(NEIGHBOURS[node])) for node in nodes
        ]
        assert lists.list_of(torch.arange(6)).tolist() == [0, 1, 2, -1, 3, -1]
    asked.clear()
    assert len(lists.sample(torch.empty(0, dtype=torch.int32), 2).sources) == len(asked) == 0
    whole = lists.all_neighbors(torch.tensor([2, 4]))
    assert (whole.indptr.tolist(), sorted(whole.sources[:3].tolist()), whole.sources[3:].tolist()) == (
        [0, 3, 4],
        [0, 1, 4],
        [2],
    )


def answer_lists(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = [NEIGHBOURS[node] for node in ids.tolist()]
    return torch.tensor([len(each) for each in found]), torch.tensor([each for some in found for each in some])


def test_lists_are_kept_for_the_most_used_nodes_within_the_budget():
    """D4. The lists depend on the partition and the budget alone.

    This part has nodes 0 to 3. Node 5 has three edges into it, node 4 one; node 6 is a neighbour of node 5.
    """
    lists = {4: [0, 5], 5: [0, 6, 1], 6: [5]}

    def answer(ids):
        found = [lists[node] for node in ids.tolist()]
        return torch.tensor([len(each) for each in found]), torch.tensor([each for some in found for each in some])

    own = torch.tensor([5, 5, 4, 5, 1], dtype=torch.int32)
    indptr = torch.tensor([0, 2, 3, 4, 5])
    for budget, rounds, expected in [(0, 2, []), (12, 2, [5]), (19, 2, [5]), (20, 1, [5, 4]), (100, 2, [5, 4, 6])]:
        kept = most_used(answer, range(4), own, rounds, budget)
        assert [node for ids, _, _ in kept for node in ids.tolist()] == expected
        assert sum(len(found) for _, _, found in kept) == sum(len(lists[node]) for node in expected)
        others, merged_indptr, sources = append_lists(indptr, own, kept)
        assert others.tolist() == sorted(expected)
        for number, node in enumerate([0, 1, 2, 3, *others.tolist()]):
            found = sources[merged_indptr[number] : merged_indptr[number + 1]].tolist()
            assert found == (lists[node] if node in expected else own[indptr[node] : indptr[node + 1]].tolist())


def test_eight_bytes_for_each_node_of_the_whole_graph():
    """All else that a trainer keeps grows with its own part and with its cache."""
    n = 10**6

    graph = SimpleNamespace(get_partition_book=PartBook, num_nodes=lambda: n, local_partition=part_with_halo(4, 3))
    lists = NeighborSampler(graph, 0, 2)
    features = Rows(torch.zeros(n, 1), 0, 3)
    table = FeatureCache(features, lists.book, 4000, scratch=lists.scratch)
    tensors = [*vars(lists).items(), *vars(table).items()]
    sizes = {name: value.nbytes for name, value in tensors if isinstance(value, torch.Tensor) and name != "rows"}
    assert sizes["scratch"] == sizes["_scratch"] == sizes["slot_of"] == 4 * n  # the first two are one
    assert sum(sizes.values()) - sizes["_scratch"] < 8 * n + 20_000


def test_nodes_of_a_hop_are_numbered_destinations_first():
    lists = NeighborSampler.__new__(NeighborSampler)
    lists.scratch = torch.full((10,), -1, dtype=torch.int32)
    nodes = torch.tensor([7, 2], dtype=torch.int32)
    drawn = Neighbors(torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([9, 2, 4, 9, 7], dtype=torch.int32))
    every, indices = lists.compact(drawn, nodes)
    assert every.tolist() == [7, 2, 4, 9]
    assert every[indices.long()].tolist() == drawn.sources.tolist()
    assert (lists.scratch == -1).all()
