"""Damaged and hostile graphs of your own: a command prints one error, exits with code 2, and runs no code."""

import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import dgl
import numpy as np
import psutil
import pytest

EDGES = "src,dst\n" + "".join(f"{k},{(k + 1) % 6}\n" for k in range(6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid graph of six nodes."""
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


def npz(path: Path, **members: np.ndarray | bytes) -> None:
    """A graph in the layout of Amazon Computers, with these members replaced."""
    ends = {"adj_indices": np.roll(np.arange(6), -1), "adj_indptr": np.arange(7), "adj_shape": np.array([6, 6])}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in {"adj_data": np.ones(6), "labels": np.arange(6) % 2, **ends, **members}.items():
            file.writestr(f"{name}.npy", value if isinstance(value, bytes) else saved(value))


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def only(folder: Path, name: str, content: bytes) -> None:
    """These edges in place of the valid ones."""
    (folder / "edges.csv").unlink()
    (folder / name).write_bytes(content)


def instead(folder: Path, make: Callable[[Path], object]) -> None:
    (folder / "edges.csv").unlink()
    make(folder / "edges.csv")


def yaml_of(folder: Path, text: str = "", *, count: int = 6, file: str = "e.csv") -> None:
    (folder / "graph.yaml").write_text(text or f"nodes: {{a: {count}}}\nedges: {{'a:b:a': {file}}}\n")
    (folder / "e.csv").write_text(EDGES)


class Runs:
    """Unpickled, it makes a file."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


WRITE: dict[str, tuple[Callable[[Path], object], str]] = {
    # what is wrong: how the valid graph is broken, and the message
    "pickle as .npy": (lambda f: (f / "label.npy").write_bytes(pickle.dumps(Runs())), "label.npy: cannot be read"),
    "a single number": (lambda f: np.save(f / "label.npy", np.array(3)), "the content is int64, expected an array"),
    "2**70 rows": (lambda f: (f / "feat.npy").write_bytes(header(f"({2**70}, 2)")), "feat.npy: cannot be read"),
    "code as header": (lambda f: (f / "feat.npy").write_bytes(header("__import__('os')")), "feat.npy: cannot be read"),
    "cut .csv.gz": (lambda f: only(f, "edges.csv.gz", gzip.compress(EDGES.encode() * 999)[:-20]), "edges.csv.gz: "),
    "an empty file": (lambda f: only(f, "edges.csv", b""), "edges.csv: cannot be read: Empty CSV file"),
    "a long text": (lambda f: only(f, "edges.csv", EDGES.encode() + b"x" * 200_000 + b",1\n"), "line 8: src x"),
    "ids above int64": (lambda f: only(f, "edges.csv", b"src,dst\n99999999999999999999,1\n"), "src has double"),
    "ids below 0": (lambda f: only(f, "edges.csv", b"src,dst\n-1,1\n"), "line 2: src -1 is not among the nodes"),
    "a pipe": (lambda f: instead(f, os.mkfifo), "has none of edges.csv"),
    "a device": (lambda f: instead(f, lambda path: path.symlink_to("/dev/zero")), "has none of edges.csv"),
    "no edges": (lambda f: only(f, "edges.npy", saved(np.zeros((0, 2), int))), "edges.npy is int64 of shape (0, 2)"),
    "yaml: a pipe": (lambda f: [yaml_of(f, file="pipe"), os.mkfifo(f / "pipe")], "pipe: no such file or folder"),
    "yaml: 10**14 nodes": (lambda f: yaml_of(f, count=10**14), "Input should be less than 2147483648"),
    "yaml: nested": (lambda f: yaml_of(f, "[" * 1500), "graph.yaml: cannot be read: maximum recursion depth"),
    "yaml: code": (
        lambda f: yaml_of(f, "!!python/object/apply:os.system ['touch executed']"),
        "graph.yaml: cannot be read: could not determine a construc",
    ),
}
DGL = "g.bin: no file with one DGL graph, or damaged"
FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "npz: label 2e9": ("g.npz", lambda p: npz(p, labels=np.full(6, 2 * 10**9)), "but node 0 has 2000000000"),
    "npz: a pipe": ("g.npz", os.mkfifo, "g.npz is neither a folder nor a file"),
    "dgl: a pipe": ("g.bin", os.mkfifo, "g.bin is neither a folder nor a file"),
    "dgl: no edges": ("g.bin", lambda p: dgl.save_graphs(str(p), [dgl.graph(([], []))]), "0 nodes and 0 edges"),
    "dgl: pickle": ("g.bin", lambda p: p.write_bytes(pickle.dumps(Runs())), DGL),
    "a link to itself": ("loop", lambda p: p.symlink_to(p), "unknown data set"),
    "no such user": ("~nobody-of-this-name/g", str, "unknown data set"),
    "a long name": ("x" * 5000, str, "unknown data set"),
}


def ends_with_a_sentence(run_here: Callable, command: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run_here(*command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("what", [*WRITE, *FILES])
def test_a_broken_graph_ends_with_a_sentence(what, folder, run_here, tmp_path):
    if what in WRITE:
        make, message = WRITE[what]
        path = target = folder
    else:
        name, make, message = FILES[what]
        path, target = name if name[0] in "~x" else tmp_path / name, tmp_path / name
    make(target)
    ends_with_a_sentence(run_here, ("data", str(path)), message, tmp_path)


@pytest.mark.parametrize("command", ["partition --parts 2 --out parts", "train --single-process --out run"])
def test_the_other_commands_end_alike(command, folder, run_here, tmp_path):
    (folder / "feat.npy").write_bytes(header(f"({2**70}, 2)"))
    name, *options = command.split()
    words = (name, *options, "--dataset", str(folder), "--root", str(tmp_path / "root"))
    ends_with_a_sentence(run_here, words, "feat.npy: cannot be read", tmp_path)


def test_a_graph_larger_than_memory_is_an_error(folder, run_here, tmp_path, monkeypatch):
    """A small compressed file may hold millions of edges."""
    only(folder, "edges.csv.gz", gzip.compress(b"src,dst\n" + b"0,1\n" * 500_000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    text = "edges.csv.gz: cannot be read: the content does not fit in memory"
    ends_with_a_sentence(run_here, ("data", str(folder)), text, tmp_path)


def test_a_misspelled_file_is_a_warning(folder, run_here):
    (folder / "label.npy").rename(folder / "labels.npy")
    assert f"warning: {folder}: labels.npy is not read" in run_here("data", str(folder)).stderr
    (folder / "labels.npy").unlink()
    assert "warning" not in run_here("data", str(folder)).stderr
