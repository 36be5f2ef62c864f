"""Amazon Computers and .npz files: the real file if it is there, and a small file with many faults."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from shared_data import shared_data

from tutorial_lib.data import load_dataset
from tutorial_lib.data.base import MASKS
from tutorial_lib.data.own_graph import load_user_graph, standardize
from tutorial_lib.errors import InputError

N, F, CLASSES = 40, 6, 3
PAIRS = [(0, 0), (0, 1), (1, 0), (1, 2), (5, 3), *((node, (node + 1) % N) for node in range(6, N))]
COMPUTERS = "amazon_co_buy_computer"


def toy_arrays() -> dict[str, np.ndarray]:
    """Arrays with a self loop, a pair in both directions, an isolated node 4, and a constant feature column 0."""
    rows, columns = zip(*PAIRS, strict=True)
    features = (np.random.RandomState(0).rand(N, F) < 0.4).astype(np.float32)
    features[:, 0] = 1
    adjacency = sparse.csr_matrix((np.ones(len(PAIRS), np.float32), (rows, columns)), shape=(N, N))
    arrays = {"labels": (np.arange(N) % CLASSES).astype(np.int32)}
    for prefix, matrix in (("adj", adjacency), ("attr", sparse.csr_matrix(features))):
        arrays |= {f"{prefix}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
        arrays[f"{prefix}_shape"] = np.array(matrix.shape)
    return arrays


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return save(tmp_path / "toy.npz", toy_arrays())


@pytest.fixture(scope="module")
def computers() -> Path:
    return shared_data("amazon_computers", f"{COMPUTERS}.npz")


def error_of(load: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as caught:
        load()
    assert "\n" not in caught.value.message
    return caught.value


def test_toy_edges_and_node_data(toy: Path):
    """The edges equal a manual list, in both directions, without duplicates and self loops."""
    dataset = load_dataset(toy)
    graph = dataset.graph
    edges = list(zip(*(end.tolist() for end in graph.edges()), strict=True))
    assert sorted(edges) == sorted({pair for s, t in PAIRS if s != t for pair in ((s, t), (t, s))})
    assert graph.num_nodes() == N
    assert graph.ndata["label"].tolist() == toy_arrays()["labels"].tolist()
    assert (graph.ndata["label"].dtype, graph.ndata["feat"].dtype) == (torch.int64, torch.float32)
    assert (dataset.name, dataset.num_classes) == (str(toy), CLASSES)


def test_features_can_be_dense_or_missing(toy: Path, tmp_path: Path):
    arrays = toy_arrays()
    csr = tuple(arrays.pop(f"attr_{part}") for part in ("data", "indices", "indptr"))
    arrays["attr_matrix"] = sparse.csr_matrix(csr, shape=arrays.pop("attr_shape")).toarray().astype(np.int8)
    assert load_user_graph(save(tmp_path / "dense.npz", arrays)).fingerprint() == load_user_graph(toy).fingerprint()
    del arrays["attr_matrix"]
    assert load_dataset(save(tmp_path / "plain.npz", arrays), features=False).num_features == 0


def test_standardize_large_and_tiny_values():
    rows = [[1e4 + 1, 0.1, 3e30, 1.4e-45], [1e4, 0.1, -3e30, 0], [1e4 - 1, 0.1, 0, 0]]
    result = standardize(np.array(rows, dtype=np.float32))
    assert np.allclose(result.mean(axis=0), 0, atol=1e-6)
    # Column 1 is constant, column 3 all but constant.
    assert np.allclose(result.std(axis=0), [1, 0, 1, 0], atol=1e-6)
    assert not result[:, [1, 3]].any()


def test_split_is_seeded(toy: Path):
    first, again, other = load_user_graph(toy, seed=3), load_user_graph(toy, seed=3), load_user_graph(toy, seed=4)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # These IDs must be the same on every computer and with every version of numpy.
    assert load_user_graph(toy).graph.ndata["val_mask"].nonzero().flatten().tolist() == [1, 7, 12, 24, 26, 31, 32, 33]


def test_real_computers_graph_equals_dgl_loader(computers: Path, tmp_path: Path):
    """DGL's loader reads the file from DGL's folder. The graphs agree up to DGL's renumbering."""
    import dgl

    class Place(dgl.data.AmazonCoBuyComputerDataset):
        def _load(self) -> None:
            """Set only the names of the folders."""

    folder = Path(Place(raw_dir=str(tmp_path)).raw_path)
    folder.mkdir()
    shutil.copyfile(computers, folder / f"{COMPUTERS}.npz")
    theirs = dgl.data.AmazonCoBuyComputerDataset(raw_dir=str(tmp_path))[0]
    ours = load_dataset("amazon-computers", root=tmp_path)
    assert (ours.name, ours.info["file"]) == ("amazon-computers", str(folder / f"{COMPUTERS}.npz"))
    assert ours.fingerprint() == load_user_graph(computers).fingerprint()
    counts = (ours.graph.num_nodes(), ours.graph.num_edges(), ours.num_features, ours.num_classes)
    assert counts == (13_752, theirs.num_edges(), 767, 10)
    assert ours.split_counts() == {"train_mask": 8_251, "val_mask": 2_751, "test_mask": 2_750}

    def summary(graph: dgl.DGLGraph) -> list[tuple[int, ...]]:
        # 0/1 features: standardized, a present word is above 0 and a missing word is below.
        rows = (graph.in_degrees(), graph.ndata["label"], (graph.ndata["feat"] > 0).sum(dim=1))
        return sorted(zip(*(row.tolist() for row in rows), strict=True))

    assert summary(theirs) == summary(ours.graph)


@pytest.mark.parametrize(
    ("name", "address", "file"),
    [
        ("amazon-computers", "https://data.dgl.ai/dataset/", "amazon_co_buy_computer.zip"),
        ("ogbn-arxiv", "snap.stanford.edu", "arxiv.zip"),
    ],
)
def test_missing_data_set_names_its_download(tmp_path: Path, name: str, address: str, file: str):
    error = error_of(lambda: load_dataset(name, root=tmp_path))
    assert error.message == f"{name} is not in {tmp_path}"
    for needed in (address, "MB", str(tmp_path / file), "download"):
        assert needed in error.remedy
    assert list(tmp_path.iterdir()) == []


def test_only_complete_download_is_kept(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user can also copy DGL's zip file into the folder."""
    root, source = tmp_path / "root", tmp_path / "source" / "dataset" / f"{COMPUTERS}.zip"
    source.parent.mkdir(parents=True)
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.write(toy, f"{COMPUTERS}.npz")
    whole = source.read_bytes()
    source.write_bytes(whole[:-30])
    for url, problem in (("http://127.0.0.1:9/", "download of http://127.0.0.1:9/dataset/"), (None, "not a zip file")):
        monkeypatch.setenv("DGL_REPO", url or f"file://{tmp_path}/source/")
        assert problem in error_of(lambda: load_dataset("amazon-computers", root=root, download=True)).message
        assert list(root.iterdir()) == []
    source.write_bytes(whole)
    for download in (True, False):
        dataset = load_dataset("amazon-computers", root=root, download=download)
        assert dataset.fingerprint() == load_user_graph(toy).fingerprint()
        assert list(root.iterdir()) == [root / source.name]
        source.unlink(missing_ok=True)


def test_damaged_file(toy: Path):
    np.savez_compressed(toy, **toy_arrays())
    whole = toy.read_bytes()
    flipped = whole[:300] + bytes(byte ^ 255 for byte in whole[300:310]) + whole[310:]
    for content in (b"", b"<html>404</html>", b"\x80\x04\x95pickle", b"\x93NUMPY\x01\x00", whole[:-1], flipped):
        toy.write_bytes(content)
        assert error_of(lambda: load_user_graph(toy)).message.startswith(f"{toy}: cut off, damaged or pickled")
    toy.unlink()
    assert "is neither a folder nor a file" in error_of(lambda: load_user_graph(toy)).message
    save(toy, {name: array for name, array in toy_arrays().items() if name != "adj_indices"})
    assert "in another layout: KeyError: 'adj_indices" in error_of(lambda: load_user_graph(toy)).message


def changed(key: int, value: object) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.concatenate([array[:key], np.array([value], array.dtype), array[key + 1 :]])


@pytest.mark.parametrize(
    ("key", "change", "text"),
    [
        ("adj_indptr", changed(3, 30), "indptr must be a non-decreasing sequence"),
        ("adj_indices", changed(2, N), "indices must be < 40"),
        ("adj_shape", lambda _: np.array([N, N + 1]), "the adjacency is 40 by 41"),
        ("attr_shape", lambda _: np.array([N, 10**15]), "Unable to allocate"),
        ("attr_data", changed(3, np.nan), "NaN or infinite values in 1 of 40 rows, first in row"),
        ("labels", lambda a: a[:-1], "of shape (39,), expected integers of shape (40,)"),
        ("labels", lambda a: a + 0.5, "label is float64 of shape (40,), expected integers"),
    ],
)
def test_wrong_content(tmp_path: Path, key: str, change: Callable[[np.ndarray], np.ndarray], text: str):
    arrays = toy_arrays()
    arrays[key] = change(arrays[key])
    assert text in error_of(lambda: load_dataset(save(tmp_path / "x.npz", arrays))).message


def test_pickle_is_never_run(tmp_path: Path):
    """A pickle that would create a file is not loaded. Unused arrays can be pickled, as in gnn-benchmark."""

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    arrays = {**toy_arrays(), "labels": np.array([Trap()], dtype=object)}
    assert "pickled" in error_of(lambda: load_user_graph(save(tmp_path / "trap.npz", arrays))).message
    arrays = {**toy_arrays(), "node_names": np.array([Trap()], dtype=object)}
    assert load_user_graph(save(tmp_path / "named.npz", arrays)).num_classes == CLASSES
    assert not (tmp_path / "ran").exists()


def test_masks_in_file_replace_random_split(toy: Path):
    masks = {name: np.arange(N) % 3 == number for number, name in enumerate(MASKS)}
    dataset = load_user_graph(save(toy, toy_arrays() | masks))
    assert all((dataset.graph.ndata[name].numpy() == mask).all() for name, mask in masks.items())
    assert (dataset.info["split"], dataset.info["directed"]) == ("masks", False)
