"""synthetic-products: reproducible, similar to ogbn-products, and cached safely."""

import os
import subprocess
import sys
from pathlib import Path

import dgl
import numpy as np
import pytest
import torch
from graph_statistics import average_clustering, graph_statistics
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tutorial_lib.data import Dataset, cache, check_dataset, load_dataset, synthetic
from tutorial_lib.data.base import MASKS
from tutorial_lib.data.synthetic import load_products

REPO = Path(__file__).resolve().parents[2]
TINY = 0.002
CACHE = "synthetic-products-0.002-seed0-v1"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Dataset:
    return load_products(scale=TINY, root=tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Dataset:
    return load_products(scale=0.01, root=tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def small_statistics(small):
    return graph_statistics(small, sample=1000)


def test_the_generated_data_have_not_changed(tiny, tmp_path):
    """Documented losses depend on the data. A deliberate change increases ``VERSION`` and changes this test."""
    assert tiny.fingerprint() == "7081479c279e0b64ddf871af3dc57c6e5d9595563cbef47bdd8038b9827bcea7"
    other = load_products(scale=TINY, seed=1, root=tmp_path)
    assert other.fingerprint() != tiny.fingerprint()
    assert not torch.equal(other.graph.ndata["label"], tiny.graph.ndata["label"])
    assert not torch.equal(other.graph.ndata["feat"], tiny.graph.ndata["feat"])


@pytest.mark.parametrize("scale", [TINY, 0.01])
def test_shape(scale, tiny, small):
    """The tiny graph has many duplicate edges, which are replaced."""
    dataset = check_dataset(tiny if scale == TINY else small)
    assert dataset.graph.num_nodes() == round(2_449_029 * scale)
    assert (dataset.num_features, dataset.num_classes) == (100, 47)
    assert dataset.graph.num_edges() / dataset.graph.num_nodes() == pytest.approx(50.5, rel=0.01)
    assert (dataset.info["scale"], dataset.info["seed"], dataset.info["real_data"]) == (scale, 0, False)


def test_classes_per_split_are_those_of_ogbn_products(small):
    label = small.graph.ndata["label"]
    measured = np.stack([torch.bincount(label[small.graph.ndata[m]], minlength=47).numpy() for m in MASKS])
    ideal = synthetic.SPLIT_CLASS_COUNTS * 0.01
    assert np.array_equal(measured, synthetic.split_class_counts(0.01))
    assert np.abs(measured - ideal).max() <= 1.5  # largest remainders: one from the split's total, one from the class
    assert synthetic.SPLIT_CLASS_COUNTS.sum(axis=1).tolist() == [196_615, 39_323, 2_213_091]
    assert measured[:, 42].tolist() == [0, 0, 325]  # as in the real split, no model can learn this class


@pytest.mark.parametrize("scale", [TINY, 0.0123, 0.5])
def test_counts_add_up_at_every_scale(scale):
    counts = synthetic.split_class_counts(scale)
    assert counts.sum() == round(2_449_029 * scale)
    assert counts.sum(axis=1) / counts.sum() == pytest.approx(np.array([0.0803, 0.0161, 0.9037]), abs=3e-4)
    assert np.array_equal(synthetic.split_class_counts(1.0), synthetic.SPLIT_CLASS_COUNTS)


def test_edges_are_symmetric_without_loops_or_duplicates(small):
    n = small.graph.num_nodes()
    src, dst = (ids.numpy() for ids in small.graph.edges())
    keys = np.sort(src * n + dst)
    assert (src != dst).all()
    assert (np.diff(keys) > 0).all()
    assert np.array_equal(keys, np.sort(dst * n + src))


def test_degrees_and_homophily(small_statistics):
    degree = small_statistics["split_mean_degree"]
    assert degree["train_mask"] > degree["val_mask"] > 1.5 * degree["test_mask"]
    assert 0.74 <= small_statistics["edge_homophily"] <= 0.86
    assert 20 <= small_statistics["median_degree"] <= 32
    assert small_statistics["max_degree"] > 15 * small_statistics["mean_degree"]


def test_neighbors_are_neighbors_of_each_other(small, small_statistics):
    src, dst = small.graph.edges()
    once = src < dst
    ends = torch.cat([src[once], dst[once]])
    ends = ends[torch.randperm(len(ends), generator=torch.Generator().manual_seed(0))].view(2, -1)
    rewired = dgl.to_simple(dgl.graph((ends.flatten(), ends.flip(0).flatten()), num_nodes=small.graph.num_nodes()))
    assert 0.3 <= small_statistics["clustering"] <= 0.5
    assert small_statistics["clustering"] > 5 * average_clustering(rewired, 500)


def test_features_help_but_neighbors_help_more(small):
    graph, label = small.graph, small.graph.ndata["label"]
    alone = graph.ndata["feat"]
    with graph.local_scope():
        graph.update_all(dgl.function.copy_u("feat", "m"), dgl.function.mean("m", "around"))
        around = graph.ndata["around"]
    most_frequent = float((label[graph.ndata["test_mask"]] == label.mode().values).double().mean())
    own, with_neighbors = (_linear_accuracy(graph, x) for x in (alone, torch.cat([alone, around], dim=1)))
    assert most_frequent + 0.1 < own < 0.7
    assert own + 0.08 < with_neighbors < 0.92


def _linear_accuracy(graph: dgl.DGLGraph, x: torch.Tensor) -> float:
    train, test, label = graph.ndata["train_mask"], graph.ndata["test_mask"], graph.ndata["label"]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.02)).fit(x[train], label[train])
    return model.score(x[test], label[test])


def test_cache_is_used_and_gives_the_same_bytes(tiny, tmp_path, monkeypatch, capsys):
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


def test_full_disk_costs_the_cache_and_not_the_data(tiny, tmp_path, monkeypatch, capsys):
    def full(path: Path, array: np.ndarray) -> None:
        path.write_bytes(array.tobytes()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic.np, "save", full)
    assert load_products(scale=TINY, root=tmp_path).fingerprint() == tiny.fingerprint()
    assert "No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path / "cache") == []


def test_two_processes_at_once_with_different_thread_counts(tiny, tmp_path):
    code = (
        "import sys, pathlib; from tutorial_lib.data.synthetic import load_products\n"
        "roots = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]) / sys.argv[2]\n"
        "print(*(load_products(scale=0.002, root=root).fingerprint() for root in roots))"
    )
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(tmp_path), threads],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            text=True,
        )
        for threads in ("1", "3")
    ]
    outputs = [child.communicate(timeout=60)[0].split()[-2:] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs == [[tiny.fingerprint()] * 2] * 2
    assert os.listdir(tmp_path / "cache") == [CACHE]


def test_different_scales_never_share_a_cache(tmp_path):
    for scale in (0.04, 1, 1.0, 0.1234567, 0.12345671):
        cache.load_generated(tmp_path, "x", 2, scale, 3, lambda *_: iter([("x", np.arange(3))]))
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {
        f"x-{scale}-seed3-v2" for scale in ("0.04", "1", "0.1234567", "0.12345671")
    }
