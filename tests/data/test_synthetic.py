"""synthetic-products: reproducible, similar to ogbn-products, and cached safely."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import PYTHONPATH_OF_ALL
from graph_statistics import graph_statistics

from tutorial_lib.data import Dataset, check_dataset, load_dataset, synthetic
from tutorial_lib.data.base import MASKS
from tutorial_lib.data.synthetic import load_products

TINY = 0.002
CACHE = "synthetic-products-0.002-seed0-v1"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Dataset:
    return load_products(scale=TINY, root=tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Dataset:
    return load_products(scale=0.01, root=tmp_path_factory.mktemp("small"))


def test_generated_data_are_unchanged(tiny, tmp_path):
    """Documented losses depend on the data. A deliberate change increases ``VERSION`` and changes this test."""
    assert tiny.fingerprint() == "7081479c279e0b64ddf871af3dc57c6e5d9595563cbef47bdd8038b9827bcea7"
    other = load_products(scale=TINY, seed=1, root=tmp_path)
    assert other.fingerprint() != tiny.fingerprint()


@pytest.mark.parametrize("scale", [TINY, 0.01])
def test_shape(scale, tiny, small):
    """Edges have both directions and no self loops. Duplicate edges, of which the tiny graph has many, are replaced."""
    graph = check_dataset(tiny if scale == TINY else small).graph
    assert graph.num_nodes() == round(2_449_029 * scale)
    assert (small.num_features, small.num_classes) == (100, 47)
    assert graph.num_edges() / graph.num_nodes() == pytest.approx(50.5, rel=0.01)
    src, dst = (ids.numpy() for ids in graph.edges())
    keys = np.sort(src * graph.num_nodes() + dst)
    assert (src != dst).all()
    assert (np.diff(keys) > 0).all()
    assert np.array_equal(keys, np.sort(dst * graph.num_nodes() + src))


@pytest.mark.parametrize("scale", [TINY, 0.0123, 0.5])
def test_classes_per_split_are_those_of_ogbn_products(scale, small):
    label = small.graph.ndata["label"]
    measured = np.stack([torch.bincount(label[small.graph.ndata[m]], minlength=47).numpy() for m in MASKS])
    assert np.array_equal(measured, synthetic.split_class_counts(0.01))
    assert measured[:, 42].tolist() == [0, 0, 325]  # as in the real split, no model can learn this class
    assert np.array_equal(synthetic.split_class_counts(1.0), synthetic.SPLIT_CLASS_COUNTS)
    counts = synthetic.split_class_counts(scale)
    assert counts.sum() == round(2_449_029 * scale)
    # Largest remainders: one from the split's total, one from the class.
    assert np.abs(counts - synthetic.SPLIT_CLASS_COUNTS * scale).max() <= 1.5


def test_degrees_homophily_and_clustering(small):
    found = graph_statistics(small, sample=1000)
    degree = found["split_mean_degree"]
    assert degree["train_mask"] > degree["val_mask"] > 1.5 * degree["test_mask"]
    assert 0.74 <= found["edge_homophily"] <= 0.86
    assert 20 <= found["median_degree"] <= 32
    assert found["max_degree"] > 15 * found["mean_degree"]
    assert 0.3 <= found["clustering"] <= 0.5


def test_cached_data_are_identical(tiny, tmp_path, monkeypatch, capsys):
    loaded = load_products(scale=TINY, root=tmp_path)
    assert os.listdir(tmp_path / "cache") == [CACHE]
    monkeypatch.setattr(synthetic, "sample_nodes", None)  # the data are not generated again
    loaded.graph.ndata["feat"][:] = 0  # does not change the cache
    cached = load_dataset("synthetic-products", scale=TINY, root=tmp_path)
    assert cached.fingerprint() == tiny.fingerprint()
    assert cached.info == tiny.info
    assert capsys.readouterr() == ("", "")


def test_damaged_cache_is_generated_again(tiny, tmp_path, capsys):
    load_products(scale=TINY, root=tmp_path)
    folder = tmp_path / "cache" / CACHE
    for name, content in (("feat.npy", None), ("low.npy", b""), ("meta.json", b"[]")):
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        assert load_products(scale=TINY, root=tmp_path).fingerprint() == tiny.fingerprint()
        assert "is damaged and is generated again" in capsys.readouterr().err
        assert os.listdir(tmp_path / "cache") == [CACHE]


def test_full_disk_prevents_caching_only(tiny, tmp_path, monkeypatch, capsys):
    def full(path: Path, array: np.ndarray) -> None:
        path.write_bytes(array.tobytes()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic.np, "save", full)
    assert load_products(scale=TINY, root=tmp_path).fingerprint() == tiny.fingerprint()
    assert "No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path / "cache") == []


def test_concurrent_generation_with_different_thread_counts(tiny, tmp_path):
    code = (
        "import sys, pathlib; from tutorial_lib.data.synthetic import load_products\n"
        "print(load_products(scale=0.002, root=pathlib.Path(sys.argv[1])).fingerprint())\n"
        "print(load_products(scale=0.002, root=pathlib.Path(sys.argv[1]) / sys.argv[2]).fingerprint())"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(tmp_path), threads],
            env={**os.environ, "PYTHONPATH": PYTHONPATH_OF_ALL, "OMP_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            text=True,
        )
        for threads in ("1", "3")
    ]
    outputs = [child.communicate(timeout=60)[0].split()[-2:] for child in children]
    assert outputs == [[tiny.fingerprint()] * 2] * 2
    assert os.listdir(tmp_path / "cache") == [CACHE]
