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


def academic_graph():
    """Return a graph of 3 authors, 2 fields and 6 papers. Paper 5 has neither an author nor a field."""
    writes, about = ([0, 1, 1, 2, 0], [0, 1, 2, 3, 4]), ([0, 1, 2, 3, 4], [0, 1, 0, 1, 1])
    edges = {("author", "writes", "paper"): writes, ("paper", "written-by", "author"): writes[::-1]}
    edges |= {("paper", "about", "field"): about, ("field", "of", "paper"): about[::-1]}
    edges |= {("author", "about", "field"): ([0, 1], [0, 1]), ("field", "of", "author"): ([0, 1], [0, 1])}
    edges |= {("paper", "cites", "paper"): ([1, 2, 3, 4, 5, 0, 4], [0, 1, 2, 3, 4, 5, 0])}
    graph = dgl.heterograph(edges, {"author": 3, "field": 2, "paper": 6})
    papers = graph.nodes["paper"].data
    papers["feat"], papers["label"] = torch.eye(6)[:, :4] + 0.1, torch.tensor([0, 1, 0, 2, 1, 0], dtype=torch.int32)
    for name, ids in {"train": [0, 2, 3], "val": [4, 5], "test": [1]}.items():
        papers[f"{name}_mask"] = torch.isin(torch.arange(6), torch.tensor(ids))
    return graph


@pytest.fixture(scope="session")
def academic(tmp_path_factory):
    """Return the DistGraph of ``academic_graph`` in this process, and its DGLGraph with the same IDs."""
    graph, folder = academic_graph(), tmp_path_factory.mktemp("academic")
    nodes, _ = dgl.distributed.partition_graph(graph, "academic", 1, str(folder), return_mapping=True)
    assert all(torch.equal(ids, torch.arange(len(ids))) for ids in nodes.values())  # one part keeps the IDs
    dgl.distributed.initialize("no_such_file.txt")
    return dgl.distributed.DistGraph("academic", part_config=str(folder / "academic.json")), graph
