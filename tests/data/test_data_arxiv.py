"""The real graph, labels and split of ogbn-arxiv. Its features are not in the shared data."""

import shutil
from pathlib import Path

import pytest
from shared_data import shared_data

from tutorial_lib.data import load_dataset
from tutorial_lib.errors import InputError


def test_real_arxiv_graph(tmp_path: Path):
    shutil.copytree(shared_data("ogbn_arxiv_nofeat", "ogbn_arxiv"), tmp_path / "ogbn_arxiv")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with pytest.raises(InputError, match=r"No such file or directory: '.*/raw/node-feat\.csv\.gz'"):
        load_dataset("ogbn-arxiv", root=tmp_path)
    dataset = load_dataset("ogbn-arxiv", root=tmp_path, features=False)
    assert (dataset.graph.num_nodes(), dataset.graph.num_edges(), dataset.num_classes) == (169_343, 2_315_598, 40)
    assert dataset.split_counts() == {"train_mask": 90_941, "val_mask": 29_799, "test_mask": 48_603}
    source, target = dataset.graph.edges()
    assert not (source == target).any()


def test_real_products_without_edges():
    with pytest.raises(InputError, match=r"No such file or directory: '.*/raw/edge\.csv\.gz'"):
        load_dataset("ogbn-products", root=shared_data("ogbn_products_partial"))
