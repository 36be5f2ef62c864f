"""Tests of ``first.py``."""

from types import SimpleNamespace

import dgl
import torch

from first import count_equal, count_remote, edges_into
from support.processes import fork

BOOK = SimpleNamespace(partid=1, nid2partid=lambda nodes: (nodes >= 3).long())  # this machine stores 3, 4, ...
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


def test_edges_into_training_nodes(tiny):
    """Sample with fan-out -1, which selects all edges, and return both ends of the edges."""
    sources, targets = edges_into(tiny, tiny.ndata["train_mask"])
    got = sorted(zip(sources.tolist(), targets.tolist()))
    expected = [(0, 2), (1, 0), (2, 0), (2, 3), (3, 2), (4, 3), (5, 0)]
    assert got == expected


def test_edges_into_the_share_of_one_trainer(tiny, monkeypatch):
    """node_split returns the nodes of this trainer. Here it returns node 2, as if another trainer had 0 and 3."""
    monkeypatch.setattr(dgl.distributed, "node_split", lambda *_args, **_options: torch.tensor([2]))
    sources, targets = edges_into(tiny, tiny.ndata["train_mask"])
    got = sorted(zip(sources.tolist(), targets.tolist()))
    expected = [(0, 2), (3, 2)]
    assert got == expected


def test_remote_nodes():
    """Compare the part of each node with the part of this machine."""
    got = count_remote(BOOK, torch.tensor([0, 3, 1, 4, 2, 5, 6]))
    expected = 3
    assert got == expected


def test_a_remote_node_counts_once():
    """A trainer reads a node once, even if the node has edges to several training nodes."""
    got = count_remote(BOOK, torch.tensor([2, 2, 5, 5, 5, 2, 0]))
    expected = 2
    assert got == expected


def count_on(rank, _size):
    edges = [([1, 2, 5], [0, 0, 0]), ([0, 3, 2, 4], [2, 2, 3, 3])][rank]
    return count_equal(LABELS, torch.tensor(edges[0]), torch.tensor(edges[1]))


def test_equal_labels_of_one_trainer():
    """An edge counts if the labels of its two ends are equal. Compare labels and not node IDs."""
    got = fork(count_on, 1, backend="gloo", threads=1, timeout=30)
    expected = [2]
    assert got == expected


def test_equal_labels_of_two_trainers():
    """Each trainer counts its edges, and all_reduce adds the counts. Both trainers return the sum."""
    got = fork(count_on, 2, backend="gloo", threads=1, timeout=30)
    expected = [3, 3]
    assert got == expected
