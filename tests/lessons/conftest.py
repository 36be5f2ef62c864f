"""Copies of the lessons' programs, and a small graph in two parts."""

from pathlib import Path

import dgl
import pytest
import torch
from solution_support import copy_scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return copy_scripts(tmp_path)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part config: 400 nodes in two parts."""
    torch.manual_seed(0)
    graph = dgl.to_bidirected(dgl.rand_graph(400, 1200))
    folder = tmp_path_factory.mktemp("parts")
    dgl.distributed.partition_graph(graph, "small", 2, str(folder), part_method="random")
    return folder / "small.json"
