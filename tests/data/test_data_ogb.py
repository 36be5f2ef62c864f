"""ogbn-arxiv and ogbn-products from small files in their layout."""

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from shared_data import shared_data

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
NEEDED = ["RELEASE_v1.txt", "raw/edge.csv.gz", "raw/node-feat.csv.gz", "split/time/test.csv.gz"]


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


def error_of(root: Path, **options: bool) -> InputError:
    with pytest.raises(InputError) as caught:
        load_ogb("ogbn-arxiv", root=root, **options)
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
    assert sorted(edges_of(dataset)) == sorted(BOTH_WAYS)
    assert capsys.readouterr().out == ""  # ogb prints, but the output of --json must stay JSON
    assert load_ogb("ogbn-arxiv", root=toy.parent).fingerprint() == dataset.fingerprint()  # from ogb's cache


def test_products_has_the_reverse_edges_of_ogb(tmp_path: Path):
    write_toy(tmp_path / "ogbn_products", "sales_ranking")
    dataset = load_ogb("ogbn-products", root=tmp_path)
    assert sorted(edges_of(dataset)) == sorted([(s, t) for s, t in ROWS.tolist()] + [(t, s) for s, t in ROWS.tolist()])


def test_missing_or_damaged_file_is_named_and_not_cached(toy: Path):
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


def test_edge_to_missing_node_is_an_error(toy: Path):
    _write_gz(toy / "raw" / "edge.csv.gz", ROWS + 1000)
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


def test_damaged_cache_is_named_and_pickled_split_is_not_read(toy: Path):
    """ogb's loader would unpickle the split, which can run any code."""
    torch.save({"train": torch.zeros(1)}, toy / "split" / "time" / "split_dict.pt")
    assert load_ogb("ogbn-arxiv", root=toy.parent).split_counts()["train_mask"] == len(PARTS["train"])
    (toy / CACHE).write_bytes(b"not a graph" * 9)
    assert f"{toy}: is incomplete or damaged" in error_of(toy.parent).message


def test_zip_is_extracted_and_kept(toy_zip: Path):
    for member in ("arxiv/../../out.txt", "/tmp/out-of-a-zip.txt"):
        with zipfile.ZipFile(toy_zip, "a") as zipped:
            zipped.writestr(member, "x")
    before = toy_zip.read_bytes()
    assert load_ogb("ogbn-arxiv", root=toy_zip.parent).graph.num_edges() == len(BOTH_WAYS)
    assert {*os.listdir(toy_zip.parent)} == {"arxiv.zip", "ogbn_arxiv"}
    assert toy_zip.read_bytes() == before
    assert not (toy_zip.parent.parent / "out.txt").exists()
    assert not Path("/tmp/out-of-a-zip.txt").exists()


def test_bad_zip_leaves_no_files(toy_zip: Path):
    whole = toy_zip.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>moved</html>", whole[:500] + bytes(400) + whole[900:]):
        toy_zip.write_bytes(content)
        assert f"{toy_zip}: is damaged" in error_of(toy_zip.parent).message
        assert os.listdir(toy_zip.parent) == ["arxiv.zip"]
    (toy_zip.parent / "ogbn_arxiv").mkdir()  # a broken folder is not replaced by the zip
    (toy_zip.parent / "ogbn_arxiv" / "notes.txt").write_text("mine")
    assert "is incomplete" in error_of(toy_zip.parent, download=True).message
    assert os.listdir(toy_zip.parent / "ogbn_arxiv") == ["notes.txt"]


def test_real_arxiv_graph(tmp_path: Path):
    """The real edges, labels and split. The features are not in the shared data."""
    shutil.copytree(shared_data("ogbn_arxiv_nofeat", "ogbn_arxiv"), tmp_path / "ogbn_arxiv")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert "raw/node-feat.csv.gz" in error_of(tmp_path).message
    dataset = load_ogb("ogbn-arxiv", root=tmp_path, features=False)
    assert (dataset.graph.num_nodes(), dataset.graph.num_edges(), dataset.num_classes) == (169_343, 2_315_598, 40)
    assert dataset.split_counts() == {"train_mask": 90_941, "val_mask": 29_799, "test_mask": 48_603}
    source, target = dataset.graph.edges()
    assert not (source == target).any()
