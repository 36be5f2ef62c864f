"""ogbn-arxiv and ogbn-products from small files in their layout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tutorial_lib.data.ogb import load_ogb
from tutorial_lib.errors import InputError

N, F = 60, 5
CACHE = "processed/dgl_data_processed"
PARTS = {"train": np.arange(0, 30), "valid": np.arange(30, 45), "test": np.arange(45, N)}
FEAT = np.random.RandomState(1).randn(N, F).round(4)
LABELS = np.arange(N) % 4


# 150 distinct (source, target) rows without self loops. Rows 0 and 1 are each other's reverse.
PAIRS = [(0, 1), (1, 0), *np.random.RandomState(0).randint(0, N, (400, 2)).tolist()]
ROWS = np.array(list(dict.fromkeys((s, t) for s, t in PAIRS if s != t))[:150])
BOTH_WAYS = {(s, t) for s, t in ROWS.tolist()} | {(t, s) for s, t in ROWS.tolist()}
NEEDED = [
    "RELEASE_v1.txt",
    "raw/edge.csv.gz",
    "raw/node-feat.csv.gz",
    "raw/node-label.csv.gz",
    "raw/node_year.csv.gz",
    "split/time/test.csv.gz",
]


@pytest.fixture(autouse=True)
def _no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of ``input()`` fails the test."""
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail(f"input() was called: {prompt}"))


def _write_gz(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(values).to_csv(path, header=False, index=False, compression="gzip")


def write_toy(folder: Path, split: str = "time") -> Path:
    raw = {"num-node-list": np.array([N]), "num-edge-list": np.array([len(ROWS)]), "edge": ROWS, "node-label": LABELS}
    for stem, values in {**raw, "node-feat": FEAT, "node_year": np.full(N, 2015)}.items():
        _write_gz(folder / "raw" / f"{stem}.csv.gz", values)
    for part, ids in PARTS.items():
        _write_gz(folder / "split" / split / f"{part}.csv.gz", ids)
    (folder / "RELEASE_v1.txt").write_text("v1\n")
    return folder


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "root" / "ogbn_arxiv")


@pytest.fixture
def toy_zip(tmp_path: Path) -> Path:
    """A root with the zip file only."""
    made, archive = write_toy(tmp_path / "made"), tmp_path / "root" / "arxiv.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in sorted(made.rglob("*")):
            zipped.write(path, f"arxiv/{path.relative_to(made)}")
    return archive


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def error_of(root: Path, name: str = "ogbn-arxiv", **options: bool) -> InputError:
    with pytest.raises(InputError) as caught:
        load_ogb(name, root=root, **options)
    assert "\n" not in caught.value.message
    return caught.value


def edges_of(dataset) -> list[tuple[int, int]]:
    return list(zip(*(end.tolist() for end in dataset.graph.edges()), strict=True))


def test_arxiv_gets_reverse_edges(toy: Path, capsys: pytest.CaptureFixture[str]):
    dataset = load_ogb("ogbn-arxiv", root=toy.parent)
    graph = dataset.graph
    assert set(graph.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}
    assert torch.equal(graph.ndata["feat"], torch.tensor(FEAT, dtype=torch.float32))
    assert torch.equal(graph.ndata["label"], torch.tensor(LABELS))
    for mask, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        assert graph.ndata[mask].nonzero().flatten().tolist() == PARTS[part].tolist()
    pairs = edges_of(dataset)
    assert len(pairs) == len(BOTH_WAYS)
    assert set(pairs) == BOTH_WAYS
    assert capsys.readouterr().out == ""  # ogb prints, but the output of --json must stay JSON
    assert load_ogb("ogbn-arxiv", root=toy.parent).fingerprint() == dataset.fingerprint()  # from ogb's cache


def test_products_has_the_reverse_edges_of_ogb(tmp_path: Path):
    write_toy(tmp_path / "ogbn_products", "sales_ranking")
    dataset = load_ogb("ogbn-products", root=tmp_path)
    assert sorted(edges_of(dataset)) == sorted([(s, t) for s, t in ROWS.tolist()] + [(t, s) for s, t in ROWS.tolist()])


def test_nothing_there(tmp_path: Path):
    error = error_of(tmp_path)
    assert error.message == f"ogbn-arxiv is not in {tmp_path}"
    for needed in ("snap.stanford.edu", "ODC-BY", "80 MB", str(tmp_path / "arxiv.zip"), "download=True"):
        assert needed in error.remedy
    assert names(tmp_path) == []


def test_a_missing_or_damaged_file_is_named_and_leaves_no_cache(toy: Path):
    for name in NEEDED:
        content = (toy / name).read_bytes()
        (toy / name).unlink()
        message = error_of(toy.parent, download=True).message
        assert f"{toy}: is incomplete or damaged" in message
        assert name in message
        for part in (content[:-9], b"") if name.endswith(".gz") else ():
            (toy / name).write_bytes(part)
            assert f"{toy}: is incomplete or damaged" in error_of(toy.parent).message
        assert name.startswith("split") or not (toy / CACHE).exists()
        (toy / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "values"), [("raw/edge", ROWS + 1000), ("split/time/train", np.array([0, N]))], ids=["edge", "split"]
)
def test_a_file_has_the_wrong_content(toy: Path, name: str, values: np.ndarray):
    _write_gz(toy / f"{name}.csv.gz", values)
    assert "is incomplete or damaged" in error_of(toy.parent).message


def test_features_can_be_missing_or_dropped(toy: Path):
    (toy / "raw" / "node-feat.csv.gz").rename(toy / "kept")
    assert load_ogb("ogbn-arxiv", root=toy.parent, features=False).num_features == 0
    (toy / "kept").rename(toy / "raw" / "node-feat.csv.gz")
    error = error_of(toy.parent)
    assert "the saved graph was loaded without features" in error.message
    assert f"move {toy}/processed away" in error.remedy
    (toy / CACHE).unlink()
    assert load_ogb("ogbn-arxiv", root=toy.parent).num_features == F
    assert "feat" not in load_ogb("ogbn-arxiv", root=toy.parent, features=False).graph.ndata


def test_a_damaged_cache_is_named_and_a_pickled_split_is_not_read(toy: Path):
    """ogb's loader would unpickle the split, which can run any code."""
    torch.save({"train": torch.zeros(1)}, toy / "split" / "time" / "split_dict.pt")
    assert load_ogb("ogbn-arxiv", root=toy.parent).split_counts()["train_mask"] == len(PARTS["train"])
    (toy / CACHE).write_bytes(b"not a graph" * 9)
    assert f"{toy}: is incomplete or damaged" in error_of(toy.parent).message


def test_zip_is_unpacked_into_its_folder_and_kept(toy_zip: Path):
    for member in ("arxiv/../../out.txt", "/tmp/out-of-a-zip.txt"):
        with zipfile.ZipFile(toy_zip, "a") as zipped:
            zipped.writestr(member, "x")
    before = toy_zip.read_bytes()
    assert load_ogb("ogbn-arxiv", root=toy_zip.parent).graph.num_edges() == len(BOTH_WAYS)
    assert names(toy_zip.parent) == ["arxiv.zip", "ogbn_arxiv"]
    assert toy_zip.read_bytes() == before
    assert not (toy_zip.parent.parent / "out.txt").exists()
    assert not Path("/tmp/out-of-a-zip.txt").exists()


def test_bad_zip_leaves_nothing(toy_zip: Path):
    whole = toy_zip.read_bytes()
    changed = whole[:500] + bytes(byte ^ 255 for byte in whole[500:900]) + whole[900:]
    for content in (whole[: len(whole) // 2], b"<html>moved</html>", changed):
        toy_zip.write_bytes(content)
        assert f"{toy_zip}: is damaged" in error_of(toy_zip.parent).message
        assert names(toy_zip.parent) == ["arxiv.zip"]
        assert toy_zip.read_bytes() == content
    (toy_zip.parent / "ogbn_arxiv").mkdir()  # a broken folder is not replaced by the zip
    (toy_zip.parent / "ogbn_arxiv" / "notes.txt").write_text("mine")
    assert "is incomplete" in error_of(toy_zip.parent, download=True).message
    assert names(toy_zip.parent / "ogbn_arxiv") == ["notes.txt"]


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
