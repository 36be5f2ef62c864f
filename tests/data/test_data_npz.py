"""Amazon Computers and .npz files: the real file where it is there, and a toy file with every fault we know of."""

from __future__ import annotations

import http.server
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from shared_data import shared_data

from tutorial_lib.data import check_dataset, load_dataset, npz
from tutorial_lib.data.base import MASKS
from tutorial_lib.data.npz import AmazonSpec, load_amazon, load_npz
from tutorial_lib.errors import InputError

N, F, CLASSES = 40, 6, 3
PAIRS = [(0, 0), (0, 1), (1, 0), (1, 2), (5, 3), *((node, (node + 1) % N) for node in range(6, N))]
COMPUTERS = "amazon_co_buy_computer"
TOY = AmazonSpec(COMPUTERS, "1 kB", N, 2 * (len(PAIRS) - 2), F, CLASSES)


def _csr(prefix: str, matrix: sparse.csr_matrix) -> dict[str, np.ndarray]:
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    return {f"{prefix}_{part}": array for part, array in parts.items()}


def toy_arrays() -> dict[str, np.ndarray]:
    """One self loop, one pair stored both ways, node 4 without an edge; feature column 0 constant."""
    rows, columns = zip(*PAIRS, strict=True)
    adjacency = sparse.csr_matrix((np.ones(len(PAIRS), np.float32), (rows, columns)), shape=(N, N))
    features = (np.random.RandomState(0).rand(N, F) < 0.4).astype(np.float32)
    features[:, 0] = 1
    labels = (np.arange(N) % CLASSES).astype(np.int32)
    return {**_csr("adj", adjacency), **_csr("attr", sparse.csr_matrix(features)), "labels": labels}


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return save(tmp_path / "toy.npz", toy_arrays())


@pytest.fixture(scope="module")
def computers() -> Path:
    return shared_data("amazon_computers", "amazon_co_buy_computer.npz")


def error_of(load: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as caught:
        load()
    assert "\n" not in caught.value.message
    return caught.value


def test_toy_edges_and_node_data(toy: Path):
    """Every edge by hand: both ways, once, without self loops."""
    dataset = check_dataset(load_npz(toy))
    graph = dataset.graph
    edges = list(zip(*(end.tolist() for end in graph.edges()), strict=True))
    expected = {(s, t) for s, t in PAIRS if s != t} | {(t, s) for s, t in PAIRS if s != t}
    assert len(edges) == len(expected)
    assert set(edges) == expected
    assert graph.num_nodes() == N
    assert graph.ndata["label"].tolist() == toy_arrays()["labels"].tolist()
    assert graph.ndata["label"].dtype == torch.int64
    assert graph.ndata["feat"].dtype == torch.float32
    assert not graph.ndata["feat"][:, 0].any()
    assert (dataset.name, dataset.num_classes) == (str(toy), CLASSES)


def test_dense_features_are_the_same(toy: Path, tmp_path: Path):
    arrays = toy_arrays()
    parts = [arrays.pop(f"attr_{part}") for part in ("data", "indices", "indptr", "shape")]
    arrays["attr_matrix"] = sparse.csr_matrix(tuple(parts[:3]), shape=parts[3]).toarray().astype(np.int8)
    assert load_npz(save(tmp_path / "dense.npz", arrays)).fingerprint() == load_npz(toy).fingerprint()


def test_without_features(tmp_path: Path):
    arrays = {key: value for key, value in toy_arrays().items() if not key.startswith("attr")}
    path = save(tmp_path / "plain.npz", arrays)
    assert load_dataset(path, features=False).num_features == 0
    assert "no node features" in error_of(lambda: load_dataset(path)).message


def test_standardise_of_large_and_tiny_values():
    rows = [[1e4 + 1, 0.1, 3e30, 1.4e-45], [1e4, 0.1, -3e30, 0], [1e4 - 1, 0.1, 0, 0]]
    result = npz.standardize(np.array(rows, dtype=np.float32))
    assert np.allclose(result.mean(axis=0), 0, atol=1e-6)
    # Column 1 is constant, column 3 all but constant.
    assert np.allclose(result.std(axis=0), [1, 0, 1, 0], atol=1e-6)
    assert not result[:, [1, 3]].any()


def test_split_is_seeded(toy: Path):
    first, again, other = load_npz(toy, seed=3), load_npz(toy, seed=3), load_npz(toy, seed=4)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # The same on every machine and numpy version: these ids were written down once.
    assert load_npz(toy, seed=0).graph.ndata["val_mask"].nonzero().flatten().tolist() == [1, 7, 12, 24, 26, 31, 32, 33]
    assert "seed is -1" in error_of(lambda: load_npz(toy, seed=-1)).message


def test_real_computers(computers: Path):
    dataset = load_dataset(computers)
    graph = dataset.graph
    counts = (graph.num_nodes(), graph.num_edges(), dataset.num_features, dataset.num_classes)
    assert counts == (13_752, 491_722, 767, 10)
    feat = graph.ndata["feat"]
    assert feat.mean(dim=0).abs().max() < 1e-6
    assert (feat.std(dim=0, unbiased=False) - 1).abs().max() < 1e-6
    assert dataset.split_counts() == {"train_mask": 8_251, "val_mask": 2_751, "test_mask": 2_750}
    assert sum(graph.ndata[mask].int() for mask in MASKS).eq(1).all()
    source, target = graph.edges()
    assert not (source == target).any()
    one_way, other_way = source * graph.num_nodes() + target, target * graph.num_nodes() + source
    assert torch.equal(one_way.sort().values, other_way.sort().values)
    assert len(one_way.unique()) == graph.num_edges()


def test_real_computers_by_name(computers: Path, tmp_path: Path):
    shutil.copyfile(computers, tmp_path / f"{COMPUTERS}.npz")
    dataset = load_dataset("amazon-computers", root=tmp_path, seed=1)
    assert dataset.name == "amazon-computers"
    assert dataset.fingerprint() == load_npz(computers, seed=1).fingerprint()


def test_same_data_as_dgl(computers: Path, tmp_path: Path):
    """DGL's own loader on the same file, in the folder where DGL keeps it: same graph up to DGL's renumbering."""
    import dgl

    class Place(dgl.data.AmazonCoBuyComputerDataset):
        def _load(self) -> None:
            """Only the names of the folders."""

    folder = Path(Place(raw_dir=str(tmp_path)).raw_path)
    folder.mkdir()
    shutil.copyfile(computers, folder / f"{COMPUTERS}.npz")
    theirs = dgl.data.AmazonCoBuyComputerDataset(raw_dir=str(tmp_path))[0]
    ours = load_amazon("amazon-computers", root=tmp_path)
    assert ours.info["file"] == str(folder / f"{COMPUTERS}.npz")

    def summary(graph: dgl.DGLGraph, feat: torch.Tensor) -> list[tuple[int, ...]]:
        rows = (graph.in_degrees(), graph.ndata["label"], (feat > 0).sum(dim=1))
        return sorted(zip(*(row.tolist() for row in rows), strict=True))

    # 0/1 features: after standardising, a word that is there is above 0 and a word that is not below.
    assert theirs.num_edges() == ours.graph.num_edges()
    assert summary(theirs, theirs.ndata["feat"]) == summary(ours.graph, ours.graph.ndata["feat"])


@pytest.mark.parametrize("name", ["amazon-computers", "amazon-photo"])
def test_by_name_not_there(tmp_path: Path, name: str):
    error = error_of(lambda: load_amazon(name, root=tmp_path))
    stem = npz.SPECS[name].stem
    assert f"neither {stem}.npz nor {stem}.zip is in {tmp_path}" in error.message
    for needed in (f"https://data.dgl.ai/dataset/{stem}.zip", "MIT", "MB", str(tmp_path / f"{stem}.zip"), "download"):
        assert needed in error.remedy
    assert list(tmp_path.iterdir()) == []


def test_by_name_but_other_data(toy: Path, tmp_path: Path):
    toy.rename(tmp_path / f"{COMPUTERS}.npz")
    error = error_of(lambda: load_amazon("amazon-computers", root=tmp_path))
    assert "(40, 74, 6, 3)" in error.message
    assert "(13752, 491722, 767, 10)" in error.message


@pytest.fixture
def toy_zip(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DGL's zip, with the toy file in it, in an otherwise empty root; the toy's counts count as published."""
    monkeypatch.setitem(npz.SPECS, "amazon-computers", TOY)
    (tmp_path / "root").mkdir()
    archive = tmp_path / "root" / f"{COMPUTERS}.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(toy, f"{COMPUTERS}.npz")
    return archive


def test_zip_of_dgl_in_root(toy: Path, toy_zip: Path):
    dataset = load_amazon("amazon-computers", root=toy_zip.parent)
    assert dataset.fingerprint() == load_npz(toy).fingerprint()
    assert list(toy_zip.parent.iterdir()) == [toy_zip]


@pytest.mark.parametrize("damage", ["cut", "html", "other"])
def test_bad_zip_in_root(toy_zip: Path, damage: str):
    if damage == "other":
        with zipfile.ZipFile(toy_zip, "w") as zipped:
            zipped.writestr("readme.txt", "x")
    else:
        toy_zip.write_bytes(toy_zip.read_bytes()[:900] if damage == "cut" else b"<html>")
    error = error_of(lambda: load_amazon("amazon-computers", root=toy_zip.parent))
    assert f"{toy_zip}: cut off, damaged or pickled" in error.message


@pytest.fixture
def server(toy_zip: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A web server that stands in for data.dgl.ai; the zip is no longer in the root. Gives the paths asked for."""
    body, asked = toy_zip.read_bytes(), []
    toy_zip.unlink()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        monkeypatch.setenv("DGL_REPO", f"http://127.0.0.1:{running.server_address[1]}/")
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield asked
        running.shutdown()


def test_download(server: list[str], toy: Path, toy_zip: Path):
    assert "neither" in error_of(lambda: load_amazon("amazon-computers", root=toy_zip.parent)).message
    assert server == []  # nothing is fetched without leave
    dataset = load_amazon("amazon-computers", root=toy_zip.parent, download=True)
    assert server == [f"/dataset/{COMPUTERS}.zip"]
    assert dataset.fingerprint() == load_npz(toy).fingerprint()
    assert list(toy_zip.parent.iterdir()) == [toy_zip]
    load_amazon("amazon-computers", root=toy_zip.parent, download=True)
    assert len(server) == 1


def test_download_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DGL_REPO", "no-such-scheme://x")
    error = error_of(lambda: load_amazon("amazon-computers", root=tmp_path, download=True))
    assert "download of no-such-scheme://x/dataset/" in error.message
    assert list(tmp_path.iterdir()) == []


def test_not_a_file(tmp_path: Path):
    assert "no such file" in error_of(lambda: load_npz(tmp_path / "none.npz")).message
    assert "is not a file" in error_of(lambda: load_npz(tmp_path)).message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (lambda _: b"", "is empty"),
        (lambda _: b"<html>404</html>", "is not an .npz file"),
        (lambda _: b"\x80\x04\x95pickle", "is not an .npz file"),
        (lambda _: b"\x93NUMPY\x01\x00", "is not an .npz file"),
        (lambda whole: whole[:100], "cut off, damaged or pickled"),
        (lambda whole: whole[: len(whole) // 2], "cut off, damaged or pickled"),
        (lambda whole: whole[:-1], "cut off, damaged or pickled"),
        (
            lambda whole: whole[:300] + bytes(byte ^ 255 for byte in whole[300:310]) + whole[310:],
            "cut off, damaged or pickled",
        ),
    ],
)
def test_damaged_file(toy: Path, content: Callable[[bytes], bytes], text: str):
    toy.write_bytes(content(toy.read_bytes()))
    error = error_of(lambda: load_npz(toy))
    assert error.message.startswith(f"{toy}: {text}")


def test_damaged_compressed_file(tmp_path: Path):
    path = tmp_path / "small.npz"
    np.savez_compressed(path, **toy_arrays())
    assert load_npz(path).graph.num_nodes() == N
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as zipped:
        at = zipped.getinfo("attr_data.npy").header_offset + 60
    path.write_bytes(whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 20]) + whole[at + 20 :])
    assert "cut off, damaged or pickled" in error_of(lambda: load_npz(path)).message


@pytest.mark.parametrize("key", [key for key in toy_arrays() if key not in ("attr_data", "labels")])
def test_missing_key(tmp_path: Path, key: str):
    arrays = toy_arrays()
    del arrays[key]
    assert f"has no {key}" in error_of(lambda: load_npz(save(tmp_path / "x.npz", arrays))).message


def changed(key: str, value: object) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[key] = value
        return array

    return change


def objects(array: np.ndarray) -> np.ndarray:
    return array.astype(object)


@pytest.mark.parametrize(
    ("key", "change", "text"),
    [
        (
            "adj_indptr",
            lambda a: a[:-1],
            "adj_* are not the arrays of a CSR matrix: index pointer size 40",
        ),
        ("adj_indptr", changed(-1, 999), "Last value of index pointer"),
        ("adj_indptr", changed(3, 30), "indptr must be a non-decreasing sequence"),
        ("adj_indptr", changed(0, 1), "index pointer should start with 0"),
        ("adj_indptr", lambda a: np.minimum(a, a[-1] - 1), f"indptr leads to {len(PAIRS) - 1} of {len(PAIRS)} entries"),
        ("adj_indptr", lambda a: a.astype(float), "indptr float64"),
        ("adj_indices", changed(2, N), "indices must be < 40"),
        ("adj_indices", changed(2, -1), "indices must be >= 0"),
        ("adj_indices", lambda a: a.astype(float), "indices are float64"),
        ("adj_indices", lambda a: a[:-1], "indices and data should have the same size"),
        ("adj_data", lambda a: a[:-1], "indices and data should have the same size"),
        ("adj_shape", lambda _: np.array([N, N + 1]), "expected a square matrix"),
        ("adj_shape", lambda _: np.array([N]), "shape is [40]"),
        ("adj_shape", lambda _: np.array([0, 0]), "shape is [0, 0]"),
        ("adj_shape", lambda _: np.array([10**15, 10**15]), "index pointer size 41 should be"),
        ("attr_indptr", lambda a: a[:-1], "attr_* are not the arrays of a CSR matrix: index pointer size 40"),
        ("attr_indices", changed(0, F), "attr_* are not the arrays of a CSR matrix: indices must be < 6"),
        ("attr_shape", lambda _: np.array([N, 10**15]), "does not fit in memory"),
        ("attr_data", changed(3, np.nan), "NaN or infinite values in 1 of 40 rows, first in row"),
        ("attr_data", changed(3, np.inf), "NaN or infinite values in 1 of 40 rows"),
        ("attr_data", lambda a: a.astype("U3"), "attr_data has dtype <U3, expected numbers"),
        ("labels", lambda a: a[:-1], "labels has 39 rows, and the graph has 40 nodes"),
        ("labels", lambda a: a.reshape(2, -1), "labels has 2 rows"),
        ("labels", changed(0, -1), "labels run from -1 to 2, expected 0 to 2"),
        ("labels", lambda a: a + 0.5, "label is float64, expected whole numbers"),
        ("labels", objects, "cut off, damaged or pickled"),
        ("attr_data", objects, "cut off, damaged or pickled"),
    ],
)
def test_wrong_content(tmp_path: Path, key: str, change: Callable[[np.ndarray], np.ndarray], text: str):
    arrays = toy_arrays()
    arrays[key] = change(arrays[key])
    assert text in error_of(lambda: load_dataset(save(tmp_path / "x.npz", arrays))).message


def test_pickle_is_never_run(tmp_path: Path):
    """A file whose pickle would create a file: it is refused, and the pickle did not run."""

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    arrays = {**toy_arrays(), "labels": np.array([Trap()], dtype=object)}
    assert "pickled" in error_of(lambda: load_npz(save(tmp_path / "trap.npz", arrays))).message
    assert not (tmp_path / "ran").exists()


def test_unknown_arrays_are_left_alone(tmp_path: Path, toy: Path):
    """gnn-benchmark's files also hold names as pickled objects; nothing reads them."""
    arrays = {**toy_arrays(), "node_names": np.array(["a", None], dtype=object)}
    assert load_npz(save(tmp_path / "named.npz", arrays)).fingerprint() == load_npz(toy).fingerprint()


def test_own_masks_take_the_place_of_a_random_split(toy: Path):
    masks = {name: np.arange(N) % 3 == number for number, name in enumerate(MASKS)}
    dataset = load_npz(save(toy, toy_arrays() | masks))
    assert all((dataset.graph.ndata[name].numpy() == mask).all() for name, mask in masks.items())
    assert (dataset.info["split"], dataset.info["directed"]) == ("masks", False)
    assert dataset.info["edges_in_the_file"] == len(set(PAIRS))
    masks.pop("val_mask")
    assert "has no val_mask" in error_of(lambda: load_npz(save(toy, toy_arrays() | masks))).message
