"""``Pairs`` give the same counts, partitions and fingerprints as the DGLGraph with the same edges."""

import numpy as np
import psutil
import pytest
import torch
from dgl.data.utils import load_graphs

from tutorial_lib.data import Dataset, base, load_dataset
from tutorial_lib.data.base import Pairs, read_endpoints, release_pages
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.partition import assign, partition_dataset, writer
from tutorial_lib.trainer.config import TrainConfig


@pytest.fixture
def both(tmp_path, monkeypatch) -> tuple[Dataset, Dataset]:
    """A generated data set as pairs and as a DGLGraph, made in several small chunks."""
    monkeypatch.setattr(base, "EDGES_PER_READ", 10_007)
    monkeypatch.setattr(writer, "FEATURE_ROWS", 1009)
    monkeypatch.setattr(base, "LARGE", 0)
    monkeypatch.setattr(assign, "BLOCK", 5_003)
    monkeypatch.setattr(writer, "BLOCK", 5_003)
    kept, made = (load_dataset("synthetic-products", scale=0.005, root=tmp_path) for _ in range(2))
    assert made.graph is made.structure
    assert isinstance(kept.structure, Pairs)
    return kept, made


def test_pairs_equal_the_graph(both):
    kept, made = both
    assert (kept.structure.num_nodes(), kept.structure.num_edges()) == (made.graph.num_nodes(), made.graph.num_edges())
    assert kept.fingerprint() == made.fingerprint()
    assert kept.split_counts() == made.split_counts()
    for of, end in enumerate(made.graph.edges(order="eid")):
        assert torch.equal(torch.cat([*read_endpoints(kept.structure, base.EDGE, of)]), end)
    assert isinstance(kept.structure, Pairs)  # none of this has made a DGLGraph


@pytest.mark.parametrize("method", ["kaminpar", "random"])
def test_parts_of_pairs_and_graph_are_identical_files(method, both, tmp_path):
    kept, made = (
        partition_dataset(dataset, 3, tmp_path / name, method=method)
        for name, dataset in zip(("kept", "made"), both, strict=True)
    )
    other = [f"part{part}/graph.dgl" for part in range(3)]  # DGL's bytes differ from call to call
    ours, theirs = (
        {name: content for name, content in done.manifest["files"].items() if name not in other}
        for done in (kept, made)
    )
    assert ours == theirs
    for part in range(3):
        ours, theirs = (load_graphs(str(done.folder / f"part{part}" / "graph.dgl"))[0][0] for done in (kept, made))
        assert all(torch.equal(*ends) for ends in zip(ours.edges(), theirs.edges(), strict=True))
        for one, other_data in ((ours.ndata, theirs.ndata), (ours.edata, theirs.edata)):
            assert all(torch.equal(value, other_data[name]) for name, value in one.items())
    assert kept.report == made.report


def test_release_pages_releases_memory_and_keeps_changes(tmp_path):
    np.save(tmp_path / "low.npy", np.arange(20_000_000, dtype=np.int32))
    low = np.load(tmp_path / "low.npy", mmap_mode="c")
    kept = Pairs(low, low, {"label": torch.zeros(3)})
    process = psutil.Process()
    before = process.memory_info().rss
    assert low.sum(dtype=np.int64) > 0
    held = process.memory_info().rss
    assert held - before > 60e6
    low[7] = -1
    release_pages(kept)
    assert (low[7], low[8]) == (-1, 8)  # a changed page keeps its content
    assert process.memory_info().rss - before < 20e6
    assert low[-1] == 19_999_999


def test_large_graph_without_edge_map_refuses_link_prediction(both, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MOST_MAPPED", 1000)
    done = partition_dataset(both[0], 2, tmp_path / "parts", method="random")
    assert not (tmp_path / "parts" / "edge_map.npy").exists()
    assert (np.sort(done.node_map) == np.arange(both[0].structure.num_nodes())).all()
    with pytest.raises(InputError, match=r"edge_map\.npy is missing, because the generated graph is large"):
        _ = done.edge_map
    with pytest.raises(InputError, match=r"edge_map\.npy is missing"):
        run_distributed(done, Layout(2), TrainConfig(task="link", epochs=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
