"""Broken and hostile graphs of one's own: each command ends with a sentence and exit code 2, and runs no code."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import dgl
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

EDGES = "src,dst\n" + "".join(f"{k},{(k + 1) % 6}\n" for k in range(6))
MAGIC = bytes.fromhex("3fa1b446f04f2edd")  # of a file of dgl.save_graphs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound graph of six nodes."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "edges.csv").write_text(EDGES)
    np.save(folder / "label.npy", np.arange(6) % 2)
    np.save(folder / "feat.npy", np.ones((6, 2), np.float32))
    return folder


def header(shape: str, kind: str = "<f8") -> bytes:
    """The start of a .npy file that claims this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path: Path, **members: np.ndarray | bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in members.items():
            if isinstance(value, np.ndarray):
                stream = io.BytesIO()
                np.save(stream, value)
                value = stream.getvalue()
            file.writestr(f"{name}.npy", value)


def npz(path: Path, **members: np.ndarray | bytes) -> None:
    """A graph in the layout of Amazon Computers, with these members replaced."""
    ends = {"adj_indices": np.roll(np.arange(6), -1), "adj_indptr": np.arange(7), "adj_shape": np.array([6, 6])}
    archive(path, **{"adj_data": np.ones(6), "labels": np.arange(6) % 2, **ends, **members})


def table(folder: Path, stem: str, **columns: object) -> None:
    (folder / "edges.csv").unlink(missing_ok=stem == "edges")
    if stem == "nodes":
        (folder / "edges.csv").write_text(EDGES)
    parquet.write_table(pa.table(columns), folder / f"{stem}.parquet")


def described(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / "e.csv").write_text("0,1\n")


def metadata(delimiter: str) -> str:
    files = f'{{"format": {{"name": "csv", "delimiter": "{delimiter}"}}, "data": ["e.csv"]}}'
    sizes = '"num_nodes_per_type": [6], "edge_type": ["a:b:a"], "num_edges_per_type": [1]'
    return f'{{"node_type": ["a"], {sizes}, "edges": {{"a:b:a": {files}}}}}'


def aborting(path: Path) -> None:
    """A file at which DGL's C++ code ends its process."""
    dgl.save_graphs(str(path), [dgl.graph(([0, 1], [1, 0]))])
    content = bytearray(path.read_bytes())
    content[24:32] = b"\xff" * 7 + b"\x7f"  # the number of graphs
    path.write_bytes(content)


class Runs:
    """Unpickled, it makes a file."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


def damaged_gzip() -> bytes:
    content = bytearray(gzip.compress(np.random.RandomState(0).bytes(100).hex().encode()))
    content[20:30] = bytes(10)
    return bytes(content)


WRITE: dict[str, tuple[Callable[[Path], object], str]] = {
    # what is wrong: how the sound graph is broken, and the message
    "pickle as .npy": (lambda f: (f / "label.npy").write_bytes(pickle.dumps(Runs())), "label.npy: cannot be read"),
    "objects": (lambda f: np.save(f / "label.npy", np.array([{}] * 6)), "label.npy: cannot be read"),
    "complex features": (lambda f: np.save(f / "feat.npy", np.ones((6, 2), complex)), "feat.npy holds complex128"),
    "dates as labels": (lambda f: np.save(f / "label.npy", np.full(6, "2020-01-01", "M8[D]")), "holds datetime64"),
    "texts as labels": (lambda f: np.save(f / "label.npy", np.full(6, "a")), "label.npy holds <U1"),
    "a single number": (lambda f: np.save(f / "label.npy", np.array(3)), "label.npy holds int64 of shape ()"),
    "infinite label": (
        lambda f: np.save(f / "label.npy", np.full(6, np.inf)),
        "label inf of node 0 is too high",
    ),
    "uint64 label": (lambda f: np.save(f / "label.npy", np.full(6, 2**63 + 1, np.uint64)), "is too high"),
    "10**12 rows": (lambda f: (f / "feat.npy").write_bytes(header(f"({10**12}, 2)")), "feat.npy: cannot be read"),
    "2**70 rows": (lambda f: (f / "feat.npy").write_bytes(header(f"({2**70}, 2)")), "feat.npy: cannot be read"),
    "negative rows": (
        lambda f: (f / "feat.npy").write_bytes(header("(-6, 2)") + bytes(96)),
        "feat.npy: cannot be read",
    ),
    "code as header": (lambda f: (f / "feat.npy").write_bytes(header("__import__('os')")), "feat.npy: cannot be read"),
    "nested header": (lambda f: (f / "feat.npy").write_bytes(header("(" * 9000)), "feat.npy: cannot be read"),
    "cut .npy": (lambda f: os.truncate(f / "feat.npy", 150), "feat.npy: cannot be read"),
    "cut .csv.gz": (
        lambda f: only(f, "edges.csv.gz", gzip.compress(EDGES.encode() + b"0,1\n" * 9999)[:-20]),
        "edges.csv.gz: ",
    ),
    "damaged .csv.gz": (lambda f: only(f, "edges.csv.gz", damaged_gzip()), "edges.csv.gz"),
    "no gzip": (lambda f: only(f, "edges.csv.gz", EDGES.encode()), "edges.csv.gz: cannot be read"),
    "latin-1": (lambda f: only(f, "edges.csv", b"src,dst\ncaf\xe9,b\n"), "edges.csv: "),
    "UTF-16": (lambda f: only(f, "edges.csv", EDGES.encode("utf-16")), "edges.csv: cannot be read"),
    "an empty file": (lambda f: only(f, "edges.csv", b""), "edges.csv: the first line is empty"),
    "a name twice": (lambda f: only(f, "edges.csv", b"src,dst,src\n0,1,2\n"), "two columns are called 'src'"),
    "a long text": (lambda f: only(f, "edges.csv", EDGES.encode() + b"x" * 200_000 + b",1\n"), "edges.csv: "),
    "a long header": (lambda f: only(f, "edges.csv", b"x" * 200_000 + b",dst\n0,1\n"), "edges.csv: cannot be read"),
    "ids above int64": (lambda f: only(f, "edges.csv", b"src,dst\n99999999999999999999,1\n"), "src has double"),
    "ids below 0": (lambda f: only(f, "edges.csv", b"src,dst\n-1,1\n"), "line 2: src -1 is not among the nodes"),
    "a folder as file": (lambda f: [(f / "edges.csv").unlink(), (f / "edges.csv").mkdir()], "has none of edges.csv"),
    "a pipe": (lambda f: [(f / "edges.csv").unlink(), os.mkfifo(f / "edges.csv")], "has none of edges.csv"),
    "a device": (lambda f: [(f / "edges.csv").unlink(), (f / "edges.csv").symlink_to("/dev/zero")], "has none of"),
    "a link to itself": (
        lambda f: [(f / "edges.csv").unlink(), (f / "edges.csv").symlink_to("edges.csv")],
        "has none of",
    ),
    "parquet of noise": (
        lambda f: only(f, "edges.parquet", b"PAR1" + bytes(99) + b"PAR1"),
        "edges.parquet: cannot be read",
    ),
    "a column twice": (
        lambda f: [
            (f / "edges.csv").unlink(),
            parquet.write_table(pa.table([[0], [1], [2]], names=["src", "src", "dst"]), f / "edges.parquet"),
        ],
        "two columns are called 'src'",
    ),
    "lists as labels": (
        lambda f: [(f / "label.npy").unlink(), table(f, "nodes", id=range(6), label=[[1]] * 6)],
        "column label has list",
    ),
    "bytes as ids": (
        lambda f: table(f, "nodes", id=[b"%d" % k for k in range(5)] + [b"\xff"]),
        "column id has binary, expected",
    ),
    "yaml: a pipe": (
        lambda f: [yaml_of(f), (f / "e.csv").unlink(), os.mkfifo(f / "e.csv")],
        "e.csv: no such file or folder",
    ),
    "yaml: a device": (lambda f: yaml_of(f, file="/dev/zero"), "/dev/zero: no such file or folder"),
    "yaml: a long name": (lambda f: yaml_of(f, file="e" * 5000), "no such file or folder"),
    "yaml: 10**30 nodes": (lambda f: yaml_of(f, count=10**30), "graph.yaml: nodes.a"),
    "yaml: 10**14 nodes": (lambda f: yaml_of(f, count=10**14), "does not fit in memory"),
    "yaml: nested": (lambda f: described(f, "graph.yaml", "[" * 1500), "graph.yaml: it is nested too deeply"),
    "yaml: code": (
        lambda f: described(f, "graph.yaml", "!!python/object/apply:os.system ['touch executed']"),
        "graph.yaml: could not determine a construc",
    ),
    "json: nested": (lambda f: described(f, "metadata.json", "[" * 100_000), "metadata.json: it is nested too deeply"),
    "json: delimiter": (lambda f: described(f, "metadata.json", metadata("||")), "the delimiter is '||'"),
    "json: é": (lambda f: described(f, "metadata.json", metadata("é")), "the delimiter is 'é'"),
}
FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "npz: cut": ("g.npz", lambda p: [npz(p), os.truncate(p, 500)], "g.npz: cut off, damaged or pickled"),
    "npz: pickle": ("g.npz", lambda p: p.write_bytes(pickle.dumps(Runs())), "g.npz: cut off, damaged or pickled"),
    "npz: objects": ("g.npz", lambda p: npz(p, labels=pickled()), "g.npz: cut off, damaged or pickled"),
    "npz: 10**12 labels": (
        "g.npz",
        lambda p: npz(p, labels=header("(1" + "0" * 12 + ",)", "<i8")),
        "does not fit in memory",
    ),
    "npz: label 2e9": (
        "g.npz",
        lambda p: npz(p, labels=np.full(6, 2 * 10**9)),
        "label 2000000000 of node 0 is too high",
    ),
    "npz: complex": (
        "g.npz",
        lambda p: npz(p, attr_matrix=np.ones((6, 2), complex)),
        "attr_matrix has dtype complex128",
    ),
    "npz: a pipe": ("g.npz", os.mkfifo, "g.npz: is not a file"),
    "dgl: a pipe": ("g.bin", os.mkfifo, "g.bin is neither a folder nor a file"),
    "dgl: no content": ("g.bin", lambda p: p.write_bytes(MAGIC), "g.bin: damaged"),
    "dgl: noise": (
        "g.bin",
        lambda p: p.write_bytes(MAGIC + struct.pack("<QQ", 2, 2) + b"\xff" * 500),
        "g.bin: damaged",
    ),
    "dgl: an abort": ("g.bin", aborting, "g.bin: damaged, or too large for the memory"),
    "not UTF-8": ("caf\udce9", lambda p: p.mkdir(), "the name is not UTF-8"),
    "a link to itself": ("loop", lambda p: p.symlink_to(p), "unknown data set"),
    "no such user": ("~nobody-of-this-name/g", str, "unknown data set"),
    "a long name": ("x" * 5000, str, "unknown data set"),
}


def only(folder: Path, name: str, content: bytes) -> None:
    """These edges in place of the sound ones."""
    (folder / "edges.csv").unlink()
    (folder / name).write_bytes(content)


def yaml_of(folder: Path, *, count: int = 6, file: str = "e.csv") -> None:
    described(folder, "graph.yaml", f"nodes: {{a: {count}}}\nedges: {{'a:b:a': {file}}}\n")
    (folder / "e.csv").write_text(EDGES)


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Runs()]), allow_pickle=True)
    return stream.getvalue()


def ends_with_a_sentence(run_here: Callable, command: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run_here(*command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("what", WRITE)
def test_a_broken_folder_ends_with_a_sentence(what, folder, run_here, tmp_path):
    breaks, message = WRITE[what]
    breaks(folder)
    ends_with_a_sentence(run_here, ("data", str(folder)), message, tmp_path)


@pytest.mark.parametrize("what", FILES)
def test_a_broken_file_ends_with_a_sentence(what, run_here, tmp_path):
    name, make, message = FILES[what]
    path = name if name[0] in "~x" else str(tmp_path / name)
    make(tmp_path / name)
    ends_with_a_sentence(run_here, ("data", path), message, tmp_path)


@pytest.mark.parametrize("command", ["partition --parts 2 --out parts", "train --single-process --out run"])
def test_the_other_commands_end_alike(command, folder, run_here, tmp_path):
    (folder / "feat.npy").write_bytes(header(f"({2**70}, 2)"))
    name, *options = command.split()
    words = (name, *options, "--dataset", str(folder), "--root", str(tmp_path / "root"))
    ends_with_a_sentence(run_here, words, "feat.npy: cannot be read", tmp_path)


def labels_of(folder: Path, how: str, last: int) -> None:
    """Six nodes of classes 0 and 1, except for node 3."""
    labels = [0, 1, 0, last, 0, 1]
    if how == "npy":
        np.save(folder / "label.npy", np.array(labels))
        return
    (folder / "label.npy").unlink()
    (folder / "nodes.csv").write_text("id,label\n" + "".join(f"{k},{of}\n" for k, of in enumerate(labels)))


@pytest.mark.parametrize("how", ["npy", "csv"])
def test_a_single_high_label_is_a_warning(how, folder, run_here):
    labels_of(folder, how, 65535)
    done = run_here("data", str(folder))
    assert done.returncode == 0
    text = f"warning: {folder}: label 65535 of node 3 makes 65,536 classes, and only 3 of them occur\n  Correct it"
    assert text in done.stderr
    labels_of(folder, "npy", 2)
    assert "warning" not in run_here("data", str(folder)).stderr


@pytest.mark.parametrize("how", ["npy", "csv"])
def test_a_label_that_no_model_could_have_is_an_error(how, folder, run_here, tmp_path):
    labels_of(folder, how, 2_000_000_000)
    text = f"error: {folder}: label 2000000000 of node 3 is too high"
    ends_with_a_sentence(run_here, ("data", str(folder)), text, tmp_path)


def test_a_table_larger_than_memory_is_an_error(folder, run_here, tmp_path, monkeypatch):
    """A small compressed file may hold millions of edges."""
    only(folder, "edges.csv.gz", gzip.compress(b"src,dst\n" + b"0,1\n" * 500_000))
    monkeypatch.setattr("tutorial_lib.data.tables.free_memory", lambda: 1_000_000)
    text = "edges.csv.gz: the content does not fit in memory"
    ends_with_a_sentence(run_here, ("data", str(folder)), text, tmp_path)


def test_a_failed_allocation_is_an_error(folder, run_here, tmp_path, monkeypatch):
    def concatenate(*_arguments: object, **_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tutorial_lib.data.own_graph._both_ways", concatenate)
    ends_with_a_sentence(run_here, ("data", str(folder), "--both-ways"), "does not fit in memory", tmp_path)


def test_a_wide_table_is_read_as_often_as_a_narrow_one(folder, run_here, monkeypatch):
    from pyarrow import csv as texts

    (folder / "feat.npy").unlink()
    opened: list[str] = []
    open_csv = texts.open_csv
    monkeypatch.setattr(texts, "open_csv", lambda path, *more: opened.append(path.name) or open_csv(path, *more))
    counts = []
    for columns in (1, 1000):
        header = ",".join(["id", *(f"f{k}" for k in range(columns))])
        rows = "".join(f"{k}{',1.5' * columns}\n" for k in range(6))
        (folder / "nodes.csv").write_text(f"{header}\n{rows}")
        done = run_here("data", str(folder))
        assert f"features                        {columns}\n" in done.stdout
        counts.append(opened.count("nodes.csv"))
        opened.clear()
    assert counts[0] == counts[1] <= 4


@pytest.mark.parametrize(("name", "meant"), [("node.csv", "nodes.csv"), ("labels.npy", "label.npy")])
def test_a_misspelled_name_is_an_error(name, meant, folder, run_here):
    (folder / "label.npy").rename(folder / name)
    done = run_here("data", str(folder))
    assert done.returncode == 2
    text = f"error: {folder}/{name} is not read\nwhat to do: Did you mean {meant}? Or move it away.\n"
    assert done.stderr == text


def test_features_that_are_missing_or_no_numbers_come_with_advice(folder, run_here):
    feat = np.ones((6, 2), np.float32)
    feat[3, 1] = np.nan
    np.save(folder / "feat.npy", feat)
    assert "what to do: Fill the gaps" in run_here("data", str(folder)).stderr
    (folder / "feat.npy").unlink()
    assert "Train with --task embedding" in run_here("data", str(folder)).stderr
