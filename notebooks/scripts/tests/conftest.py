"""A tiny DistGraph for the tests of the pieces. The docstring of a test is the hint that ``check`` prints."""

import dgl
import pytest
import torch


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory):
    """A partition with one part of six nodes and nine edges. Nodes 0, 2, 3: training; 4, 5: validation; 1: test."""
    graph = dgl.graph(([1, 2, 0, 3, 2, 4, 5, 5, 1], [0, 0, 2, 2, 3, 3, 4, 0, 5]), num_nodes=6)
    graph.ndata["feat"], graph.ndata["label"] = torch.eye(6), torch.tensor([0, 1, 0, 2, 1, 0])
    graph.ndata["train_mask"] = torch.tensor([True, False, True, True, False, False])
    graph.ndata["val_mask"] = torch.tensor([False, False, False, False, True, True])
    graph.ndata["test_mask"] = torch.tensor([False, True, False, False, False, False])
    folder = tmp_path_factory.mktemp("tiny")
    dgl.distributed.partition_graph(graph, "tiny", 1, str(folder))
    return str(folder / "tiny.json")


@pytest.fixture(scope="session")
def tiny(tiny_config):
    """Return the DistGraph of ``tiny_config`` in this process."""
    dgl.distributed.initialize("no_such_file.txt")
    return dgl.distributed.DistGraph("tiny", part_config=tiny_config)
