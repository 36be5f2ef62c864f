"""Damaged and malicious graphs: a command prints one error, exits with code 2, and runs no code of the graph."""

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

EDGES = b"src,dst\n" + b"".join(b"%d,%d\n" % (k, (k + 1) % 6) for k in range(6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid graph of six nodes."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "edges.csv").write_bytes(EDGES)
    np.save(folder / "label.npy", np.arange(6) % 2)
    np.save(folder / "feat.npy", np.ones((6, 2), np.float32))
    return folder


def header(shape: str) -> bytes:
    """The start of a .npy file that claims this shape."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


class FileOnUnpickle:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch executed",)


PICKLE = pickle.dumps(FileOnUnpickle())
# The file that is written into the valid graph, its content (None: it is a pipe), and the message.
CASES = {
    "pickle as .npy": ("label.npy", PICKLE, "label.npy: cannot be read"),
    "2**70 rows": ("feat.npy", header(f"({2**70}, 2)"), "feat.npy: cannot be read"),
    "code as header": ("feat.npy", header("__import__('os')"), "feat.npy: cannot be read"),
    "cut .csv.gz": ("edges.csv.gz", gzip.compress(EDGES * 999)[:-20], "edges.csv.gz: "),
    "a long text": ("edges.csv", EDGES + b"x" * 200_000 + b",1\n", "line 8: src x"),
    "a pipe": ("edges.csv", None, "has none of edges.csv"),
    "yaml: 10**14 nodes": ("graph.yaml", b"nodes: {a: %d}" % 10**14, "Input should be less than 2147483648"),
    "yaml: nested": ("graph.yaml", b"[" * 1500, "graph.yaml: cannot be read: maximum recursion depth"),
    "yaml: code": ("graph.yaml", b"!!python/object/apply:os.system ['touch executed']", "not determine a construc"),
    "npz: a pipe": ("g.npz", None, "g.npz is neither a folder nor a file"),
    "dgl: pickle": ("g.bin", PICKLE, "g.bin is damaged, or is not a file with one DGL graph"),
}


def assert_one_line_error(run_here: Callable, command: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run_here(*command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("what", CASES)
def test_malformed_graph_gives_one_line_error(what, folder, run_here, tmp_path):
    name, content, message = CASES[what]
    if name.startswith("edges"):
        (folder / "edges.csv").unlink()
    if content is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(content)
    path = folder / name if name.startswith("g.") else folder
    assert_one_line_error(run_here, ("data", str(path)), message, tmp_path)


@pytest.mark.parametrize("command", ["partition --parts 2 --out parts", "train --single-process --out run"])
def test_other_commands_give_one_line_error(command, folder, run_here, tmp_path):
    (folder / "feat.npy").write_bytes(header(f"({2**70}, 2)"))
    words = (*command.split(), "--dataset", str(folder), "--root", str(tmp_path / "root"))
    assert_one_line_error(run_here, words, "feat.npy: cannot be read", tmp_path)


def test_a_graph_larger_than_memory_is_an_error(folder, run_here, tmp_path, monkeypatch):
    """A small compressed file may hold millions of edges."""
    (folder / "edges.csv").unlink()
    (folder / "edges.csv.gz").write_bytes(gzip.compress(b"src,dst\n" + b"0,1\n" * 500_000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    text = "edges.csv.gz: cannot be read: the content does not fit in memory"
    assert_one_line_error(run_here, ("data", str(folder)), text, tmp_path)


def test_misspelled_file_name_is_a_warning(folder, run_here):
    (folder / "label.npy").rename(folder / "labels.npy")
    assert f"warning: {folder}: labels.npy is not read" in run_here("data", str(folder)).stderr
    (folder / "labels.npy").unlink()
    assert "warning" not in run_here("data", str(folder)).stderr
