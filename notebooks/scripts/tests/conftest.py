"""A tiny DistGraph for the tests of the pieces. The docstring of a test is the hint that ``check`` prints."""

import dgl
import pytest
import torch


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Six nodes and nine edges, in one process. Nodes 0, 2 and 3 are for training and 4 and 5 for validation."""
    graph = dgl.graph(([1, 2, 0, 3, 2, 4, 5, 5, 1], [0, 0, 2, 2, 3, 3, 4, 0, 5]), num_nodes=6)
    graph.ndata["feat"], graph.ndata["label"] = torch.eye(6), torch.tensor([0, 1, 0, 2, 1, 0])
    graph.ndata["train_mask"] = torch.tensor([True, False, True, True, False, False])
    graph.ndata["val_mask"] = torch.tensor([False, False, False, False, True, True])
    folder = tmp_path_factory.mktemp("tiny")
    dgl.distributed.partition_graph(graph, "tiny", 1, str(folder))
    dgl.distributed.initialize("no_such_file.txt")
    return dgl.distributed.DistGraph("tiny", part_config=str(folder / "tiny.json"))
