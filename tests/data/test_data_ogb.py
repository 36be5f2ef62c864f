"""ogbn-* loading, on a toy data set in OGB's on-disk layout and on the real arxiv graph where it is there."""

from __future__ import annotations

import dataclasses
import gzip
import http.server
import importlib.util
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from shared_data import shared_data

from tutorial_lib.data import download, load_dataset
from tutorial_lib.data.ogb import CACHE, SPECS, OgbSpec, load_ogb
from tutorial_lib.errors import InputError

N, F, CLASSES = 60, 5, 4
RAW = ["edge", "node-label", "node_year"]
NEEDED = [f"raw/{stem}.csv.gz" for stem in RAW]
NEEDED += [f"split/time/{part}.csv.gz" for part in ("train", "valid", "test")]


def _rows() -> np.ndarray:
    """150 distinct (source, target) rows without self loops; rows 0 and 1 are each other's reverse."""
    random = np.random.RandomState(0)
    pairs = {(0, 1): None, (1, 0): None}
    while len(pairs) < 150:
        source, target = map(int, random.randint(0, N, 2))
        if source != target:
            pairs[source, target] = None
    return np.array(list(pairs))


ROWS = _rows()
FEAT = np.random.RandomState(1).randn(N, F).round(4)
LABELS = np.arange(N) % CLASSES
PARTS = {"train": np.arange(0, 30), "valid": np.arange(30, 45), "test": np.arange(45, N)}
BOTH_WAYS = {(s, t) for s, t in ROWS.tolist()} | {(t, s) for s, t in ROWS.tolist()}

CITES = OgbSpec(
    name="toy-cites",
    folder="toy_cites",
    url="http://127.0.0.1:9/cites.zip",
    zip_name="cites.zip",
    nodes=N,
    edge_rows=len(ROWS),
    directed_edges=len(BOTH_WAYS),
    num_classes=CLASSES,
    licence="none",
    size="about 1 kB",
    split="time",
    inverse_edges=False,
    extra_node_files=("node_year",),
)
BUYS = dataclasses.replace(CITES, name="toy-buys", inverse_edges=True, directed_edges=2 * len(ROWS))


@pytest.fixture(autouse=True)
def _toy_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy specs are known, and a question fails the test that would have hung."""
    for spec in (CITES, BUYS):
        monkeypatch.setitem(SPECS, spec.name, spec)
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail(f"input() was called: {prompt}"))


def _write_gz(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(values).to_csv(path, header=False, index=False, compression="gzip")


def write_toy(folder: Path) -> Path:
    """A whole data set in OGB's layout, with the two files that only ogb's own loader reads."""
    for stem, count in (("num-node-list", N), ("num-edge-list", len(ROWS))):
        _write_gz(folder / "raw" / f"{stem}.csv.gz", np.array([count]))
    raw = [ROWS, LABELS, np.full(N, 2015)]
    for stem, values in zip(RAW, raw, strict=True):
        _write_gz(folder / "raw" / f"{stem}.csv.gz", values)
    _write_gz(folder / "raw" / "node-feat.csv.gz", FEAT)
    for part, ids in PARTS.items():
        _write_gz(folder / "split" / "time" / f"{part}.csv.gz", ids)
    return folder


def zip_folder(folder: Path, archive: Path, top: str) -> Path:
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in sorted(folder.rglob("*")):
            zipped.write(path, f"{top}/{path.relative_to(folder)}")
    return archive


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of ``toy-cites`` below a root."""
    return write_toy(tmp_path / "root" / CITES.folder)


@pytest.fixture
def toy_zip(tmp_path: Path) -> Path:
    """Only the zip below a root."""
    (tmp_path / "root").mkdir()
    return zip_folder(write_toy(tmp_path / "made"), tmp_path / "root" / CITES.zip_name, "cites")


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def error_of(root: Path, name: str = CITES.name, **options: bool) -> InputError:
    with pytest.raises(InputError) as caught:
        load_ogb(name, root=root, **options)
    assert "\n" not in caught.value.message
    return caught.value


def edges_of(dataset) -> list[tuple[int, int]]:
    return list(zip(*(end.tolist() for end in dataset.graph.edges()), strict=True))


def test_specs_agree_with_the_table_inside_ogb():
    package = importlib.util.find_spec("ogb").submodule_search_locations[0]
    master = pd.read_csv(Path(package) / "nodeproppred" / "master.csv", index_col=0, keep_default_na=False)
    for name in ("ogbn-products", "ogbn-arxiv"):
        spec, row = SPECS[name], master[name]
        assert (spec.url, spec.split, str(spec.num_classes)) == (row["url"], row["split"], row["num classes"])
        assert spec.zip_name == row["download_name"] + ".zip"
        assert str(spec.inverse_edges) == row["add_inverse_edge"]
        assert (",".join(spec.extra_node_files) or "None") == row["additional node files"]
        assert (row["is hetero"], row["binary"], row["num tasks"]) == ("False", "False", "1")


def test_load_toy(toy: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_ogb(CITES.name, root=toy.parent)
    graph = dataset.graph
    assert set(graph.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}
    assert torch.equal(graph.ndata["feat"], torch.tensor(FEAT, dtype=torch.float32))
    assert torch.equal(graph.ndata["label"], torch.tensor(LABELS))
    for mask, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        assert graph.ndata[mask].dtype == torch.bool
        assert graph.ndata[mask].nonzero().flatten().tolist() == PARTS[part].tolist()
    pairs = edges_of(dataset)
    assert len(pairs) == len(BOTH_WAYS)
    assert set(pairs) == BOTH_WAYS
    assert dataset.num_classes == CLASSES
    assert dataset.info["reverse_edges_from"] == "tutorial_lib"
    assert capsys.readouterr().out == ""  # ogb prints; --json must stay clean
    again = load_ogb(CITES.name, root=toy.parent)
    assert again.fingerprint() == dataset.fingerprint()  # the second time from ogb's cache


def test_inverse_edges_by_ogb(toy: Path):
    dataset = load_ogb(BUYS.name, root=toy.parent)
    assert sorted(edges_of(dataset)) == sorted([(s, t) for s, t in ROWS.tolist()] + [(t, s) for s, t in ROWS.tolist()])
    assert dataset.info["reverse_edges_from"] == "ogb"


def test_nothing_there(tmp_path: Path):
    error = error_of(tmp_path)
    assert "neither the folder toy_cites nor cites.zip" in error.message
    for needed in (CITES.url, CITES.licence, CITES.size, str(tmp_path / "cites.zip"), "download=True"):
        assert needed in error.remedy
    assert names(tmp_path) == []


@pytest.mark.parametrize("missing", NEEDED)
def test_a_file_is_missing(toy: Path, missing: str):
    (toy / missing).unlink()
    before = sorted(toy.rglob("*"))
    error = error_of(toy.parent)
    assert f"is incomplete: {missing} missing" in error.message
    assert CITES.url in error.remedy
    assert sorted(toy.rglob("*")) == before


@pytest.mark.parametrize("name", [*NEEDED, "raw/node-feat.csv.gz"])
@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_file_is_damaged(toy: Path, name: str, damage: str):
    whole = (toy / name).read_bytes()
    contents = {"cut": whole[: len(whole) // 2 + 6], "empty": b"", "text": b"<html>404</html>"}
    (toy / name).write_bytes(contents[damage])
    error = error_of(toy.parent)
    assert str(toy / name) in error.message
    assert "damaged or cut off" in error.message
    assert not (toy / CACHE).exists()


def test_a_long_file_is_cut_near_its_end(toy: Path):
    """Past the first block that is read, so only reading to the end finds it."""
    path = toy / "raw" / "node-feat.csv.gz"
    whole = gzip.compress(np.random.RandomState(0).bytes(3 << 20), compresslevel=1)
    path.write_bytes(whole[:-9])
    assert f"{path} is unreadable, damaged or cut off" in error_of(toy.parent).message


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("raw/edge", np.array([["a", "b"]]), "edge.csv.gz is unreadable, damaged or cut off"),
        ("raw/edge", ROWS[:-1], "edge rows: 149, published: 150"),
        ("raw/edge", ROWS + 1000, f"edge.csv.gz has ids outside 0 to {N - 1}"),
        ("raw/edge", ROWS - 1, f"edge.csv.gz has ids outside 0 to {N - 1}"),
        ("raw/node-feat", FEAT[:-1], "node-feat.csv.gz has 59 rows, published: 60"),
        ("raw/node-label", LABELS[:-1], "labels:"),
        (
            "raw/node-label",
            np.where(LABELS == 1, np.nan, LABELS),
            "node-label.csv.gz is unreadable",
        ),
        ("split/time/train", np.array([0, N]), f"ids outside 0 to {N - 1}"),
        ("split/time/train", np.array(["x"]), "train.csv.gz is unreadable, damaged or cut off"),
        ("split/time/test", np.array([0]), "test.csv.gz has nodes of another part of the split"),
    ],
)
def test_a_file_has_the_wrong_content(toy: Path, name: str, values: np.ndarray, text: str):
    _write_gz(toy / f"{name}.csv.gz", values)
    assert text in error_of(toy.parent).message


def test_wrong_node_count(toy: Path, monkeypatch: pytest.MonkeyPatch):
    load_ogb(CITES.name, root=toy.parent)  # which makes the cache
    monkeypatch.setitem(SPECS, CITES.name, dataclasses.replace(CITES, nodes=N + 1))
    assert "nodes: 60, published: 61" in error_of(toy.parent).message


def test_features_missing(toy: Path):
    (toy / "raw" / "node-feat.csv.gz").rename(toy / "kept")
    error = error_of(toy.parent)
    assert "has no node features" in error.message
    assert "features=False" in error.remedy
    assert "--graph-only" in error.remedy
    assert not (toy / CACHE).exists()  # a cache without features would hide features that are added later
    assert load_ogb(CITES.name, root=toy.parent, features=False).num_features == 0
    (toy / "kept").rename(toy / "raw" / "node-feat.csv.gz")
    error = error_of(toy.parent)
    assert str(toy / CACHE) in error.message
    assert "Move it away" in error.remedy


def test_features_not_wanted(toy: Path):
    assert "feat" not in load_ogb(CITES.name, root=toy.parent, features=False).graph.ndata
    assert load_ogb(CITES.name, root=toy.parent).num_features == F


def test_cache_is_enough(toy: Path):
    whole = load_ogb(CITES.name, root=toy.parent).fingerprint()
    shutil.rmtree(toy / "raw")
    assert load_ogb(CITES.name, root=toy.parent).fingerprint() == whole


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_damaged_cache_is_named_and_kept(toy: Path, damage: str):
    load_ogb(CITES.name, root=toy.parent)
    cache = toy / CACHE
    contents = {"cut": cache.read_bytes()[:900], "empty": b"", "text": b"not a graph" * 9}
    cache.write_bytes(contents[damage])
    error = error_of(toy.parent)
    assert str(cache) in error.message
    assert cache.read_bytes() == contents[damage]


@pytest.mark.parametrize("interruption", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_half_written_cache(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys, interruption: BaseException):
    """A full disk costs the cache and not the data."""
    from dgl.data import utils

    whole = load_ogb(CITES.name, root=toy.parent).fingerprint()
    (toy / CACHE).unlink()

    def half(path: str, *_: object) -> None:
        Path(path).write_bytes(b"half")
        raise interruption

    monkeypatch.setattr(utils, "save_graphs", half)
    if isinstance(interruption, OSError):
        assert load_ogb(CITES.name, root=toy.parent).fingerprint() == whole
        assert f"not cached in {toy / CACHE}: " in capsys.readouterr().err
    else:
        with pytest.raises(KeyboardInterrupt):
            load_ogb(CITES.name, root=toy.parent)
    assert list((toy / CACHE).parent.iterdir()) == []


def test_a_pickled_split_is_not_read(toy: Path):
    """ogb's own loader would unpickle it, which can run any code, and ignore the files that were checked."""
    torch.save({"train": torch.zeros(1)}, toy / "split" / "time" / "split_dict.pt")
    assert load_ogb(CITES.name, root=toy.parent).split_counts()["train_mask"] == len(PARTS["train"])


def test_the_cache_is_that_of_ogb(toy: Path, monkeypatch: pytest.MonkeyPatch):
    """ogb's own loader finds it good, and reads what we read."""
    from ogb.nodeproppred import DglNodePropPredDataset

    ours = load_ogb(BUYS.name, root=toy.parent).graph
    (toy / "RELEASE_v1.txt").write_text("v1\n")
    meta = {"dir_path": str(toy), "download_name": "cites", "version": 1, "url": "", "split": "time", "num tasks": 1}
    meta |= {"num classes": CLASSES, "task type": "multiclass classification", "eval metric": "acc"}
    meta |= {"is hetero": "False", "binary": "False", "add_inverse_edge": "True"}
    meta |= {"additional node files": "node_year", "additional edge files": "None"}

    def read_by_ogb():
        data = DglNodePropPredDataset(BUYS.name, meta_dict=dict(meta))
        (graph, labels), split = data[0], data.get_idx_split()
        return [*graph.edges(), graph.ndata["feat"], labels, *(split[part] for part in ("train", "valid", "test"))]

    from_our_cache = read_by_ogb()
    (toy / CACHE).unlink()
    for one, other in zip(from_our_cache, read_by_ogb(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(from_our_cache[0], ours.edges()[0])


def test_read_only(toy: Path):
    """Without a cache it takes longer, that is all (and root may write anywhere)."""
    load_ogb(CITES.name, root=toy.parent)
    for _ in range(2):
        toy.chmod(0o555)
        try:
            assert load_ogb(CITES.name, root=toy.parent).num_features == F
        finally:
            toy.chmod(0o755)
        shutil.rmtree((toy / CACHE).parent, ignore_errors=True)


def test_zip_is_unpacked_and_kept(toy_zip: Path):
    before = toy_zip.read_bytes()
    dataset = load_ogb(CITES.name, root=toy_zip.parent)
    assert dataset.graph.num_edges() == len(BOTH_WAYS)
    assert names(toy_zip.parent) == ["cites.zip", "toy_cites"]
    assert toy_zip.read_bytes() == before


def _damage_zip(archive: Path, damage: str) -> None:
    whole = archive.read_bytes()
    if damage == "cut":
        archive.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        archive.write_bytes(b"")
    elif damage == "html":
        archive.write_bytes(b"<html>moved</html>")
    elif damage == "flipped":
        with zipfile.ZipFile(archive) as zipped:
            at = zipped.getinfo("cites/raw/node-feat.csv.gz").header_offset + 200
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    else:
        with zipfile.ZipFile(archive, "a") as zipped:
            zipped.writestr({"parent": "cites/../../out.txt", "absolute": "/tmp/out.txt"}[damage], "x")


@pytest.mark.parametrize("damage", ["cut", "empty", "html", "flipped", "parent", "absolute"])
def test_bad_zip_leaves_nothing(toy_zip: Path, damage: str):
    _damage_zip(toy_zip, damage)
    before = toy_zip.read_bytes()
    error = error_of(toy_zip.parent)
    assert str(toy_zip) in error.message
    assert "unsafe path" in error.message if damage in ("parent", "absolute") else "damaged" in error.message
    assert names(toy_zip.parent) == ["cites.zip"]
    assert toy_zip.read_bytes() == before
    assert not (toy_zip.parent.parent / "out.txt").exists()


def test_zip_of_something_else(toy_zip: Path, tmp_path: Path):
    zip_folder(tmp_path / "made" / "raw", toy_zip, "elsewhere")
    error = error_of(toy_zip.parent)
    assert "does not contain raw/edge.csv.gz" in error.message
    assert names(toy_zip.parent) == ["cites.zip"]


def test_a_broken_folder_is_not_replaced_by_the_zip(toy_zip: Path):
    (toy_zip.parent / "toy_cites").mkdir()
    (toy_zip.parent / "toy_cites" / "notes.txt").write_text("mine")
    assert "is incomplete" in error_of(toy_zip.parent, download=True).message
    assert names(toy_zip.parent / "toy_cites") == ["notes.txt"]


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the bytes of the server whole, or cut off half-way, or not at all."""

    def do_GET(self) -> None:
        body: bytes = self.server.body  # type: ignore[attr-defined]
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        half = len(body) // 2
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path.startswith("/cut"):
            self.wfile.write(body[:half])
        elif self.path.startswith("/nuls"):
            self.wfile.write(body[:half] + bytes(len(body) - half))
        elif self.path.startswith("/trickle"):
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        else:
            self.wfile.write(body[:half])
            time.sleep(0.5 if self.path.startswith("/slow") else 0)
            self.wfile.write(body[half:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(toy_zip: Path) -> Iterator[str]:
    """Address of a web server for the toy zip, which is no longer in the root."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        running.body = toy_zip.read_bytes()
        toy_zip.unlink()
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_download(server: str, toy_zip: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SPECS, CITES.name, dataclasses.replace(CITES, url=f"{server}/cites.zip"))
    assert "neither" in error_of(toy_zip.parent).message  # not without download=True
    dataset = load_ogb(CITES.name, root=toy_zip.parent, download=True)
    assert dataset.graph.num_edges() == len(BOTH_WAYS)
    assert names(toy_zip.parent) == ["cites.zip", "toy_cites"]


@pytest.mark.parametrize("fault", ["missing", "cut", "nuls", "trickle", "refused", "unknown"])
def test_download_fails(server: str, toy_zip: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    """Also a file of the right length that holds zeros, and a server that sends a byte now and then."""
    monkeypatch.setattr(download, "SILENT_SECONDS", 0.5)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        url = {
            "missing": f"{server}/missing.zip",
            "cut": f"{server}/cut.zip",
            "nuls": f"{server}/nuls.zip",
            "trickle": f"{server}/trickle.zip",
            "refused": f"http://127.0.0.1:{unused.getsockname()[1]}/cites.zip",
            "unknown": "no-such-scheme://x/cites.zip",
        }[fault]
        monkeypatch.setitem(SPECS, CITES.name, dataclasses.replace(CITES, url=url))
        error = error_of(toy_zip.parent, download=True)
    assert f"download of {url} failed" in error.message
    assert str(toy_zip) in error.remedy
    assert names(toy_zip.parent) == []


def test_two_downloads_at_once_do_not_mix(server: str, tmp_path: Path):
    """Neither shares the other's file, and both end with a whole archive under its name."""
    target = tmp_path / "two" / "cites.zip"
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(download.fetch, f"{server}/slow.zip", target, "") for _ in range(2)]:
            done.result(timeout=20)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
    assert names(target.parent) == ["cites.zip"]


def test_who_comes_second_waits_and_takes_what_is_there(server: str, toy_zip: Path, monkeypatch, capsys):
    monkeypatch.setitem(SPECS, CITES.name, dataclasses.replace(CITES, url=f"{server}/slow.zip"))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(load_ogb, CITES.name, root=toy_zip.parent, download=True) for _ in range(2)]
        assert len({done.result(timeout=30).fingerprint() for done in both}) == 1
    assert names(toy_zip.parent) == ["cites.zip", "toy_cites"]
    assert capsys.readouterr().err.count("is plain HTTP") == 1  # one of the two has downloaded


def test_import_of_ogb_starts_no_version_check():
    """In a fresh process: no thread that asks a web service, nothing on stdout."""
    code = (
        "import threading\n"
        "import tutorial_lib\n"
        "from ogb.io.read_graph_dgl import read_graph_dgl\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_real_arxiv_graph(tmp_path: Path):
    """The real graph, labels and split; its features are not in the shared data."""
    shutil.copytree(shared_data("ogbn_arxiv_nofeat", "ogbn_arxiv"), tmp_path / "ogbn_arxiv")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert "has no node features" in error_of(tmp_path, "ogbn-arxiv").message
    dataset = load_dataset("ogbn-arxiv", root=tmp_path, features=False)
    assert (dataset.graph.num_nodes(), dataset.graph.num_edges(), dataset.num_classes) == (169_343, 2_315_598, 40)
    assert dataset.split_counts() == {"train_mask": 90_941, "val_mask": 29_799, "test_mask": 48_603}
    source, target = dataset.graph.edges()
    assert not (source == target).any()
    assert dataset.info["edge_rows"] == 1_166_243


def test_real_products_without_edges():
    root = shared_data("ogbn_products_partial")
    error = error_of(root, "ogbn-products")
    for name in ("raw/edge.csv.gz", "raw/node-feat.csv.gz", "split/sales_ranking/test.csv.gz"):
        assert name in error.message
    assert "node-label" not in error.message


def test_gzip_of_several_members_is_whole(toy: Path):
    """A gzip file may be a chain of streams (pigz, cat a.gz b.gz); that is not damage."""
    path = toy / "raw" / "node-label.csv.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:20])) + gzip.compress(b"".join(lines[20:])))
    assert load_ogb(CITES.name, root=toy.parent).graph.ndata["label"].tolist() == LABELS.tolist()
