"""Amazon Computers, Amazon Photo, and any ``.npz`` file in their layout.

The layout is that of https://github.com/shchur/gnn-benchmark ("Pitfalls of Graph Neural Network Evaluation",
arXiv:1811.05868): a graph of N nodes as CSR arrays ``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``;
features as ``attr_*`` in the same form or as one dense ``attr_matrix``, or none; ``labels``, integers of shape (N,).
And, which is ours: ``train_mask``, ``val_mask``, ``test_mask``, bool (N,), all three of them or none.

``dgl.data.AmazonCoBuyComputerDataset`` reads the same file, but it unpickles it, renumbers the nodes without keeping
their old numbers, and downloads again without a word when its cache is damaged. So its file is used, not its code.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from tutorial_lib.data.base import MASKS, Dataset, check_features, check_labels, node_data
from tutorial_lib.data.download import WAIT_SECONDS, fetch
from tutorial_lib.data.ends import Names
from tutorial_lib.data.nodes import Nodes, class_numbers
from tutorial_lib.data.tables import no_memory
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in

ADJACENCY = ("adj_data", "adj_indices", "adj_indptr", "adj_shape")
SPARSE = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")


@dataclass(frozen=True)
class AmazonSpec:
    """What is published about one data set; edges are directed, after symmetrising and without self loops."""

    stem: str  # DGL's file name
    original: str  # its name at shchur/gnn-benchmark
    size: str
    nodes: int
    edges: int
    features: int
    classes: int


# Counts: PyTorch Geometric's page of torch_geometric.datasets.Amazon. DGL's page says 238,163 edges for Photo: it keeps
# the one self loop.
SPECS = {
    "amazon-computers": AmazonSpec(
        "amazon_co_buy_computer", "amazon_electronics_computers", "about 3.5 MB", 13_752, 491_722, 767, 10
    ),
    "amazon-photo": AmazonSpec("amazon_co_buy_photo", "amazon_electronics_photo", "about 3 MB", 7_650, 238_162, 745, 8),
}


def load_npz(path: str | Path, *, seed: int = 0) -> Dataset:
    """Load a graph for node classification from an ``.npz`` file in the layout of this module's docstring.

    Each stored pair becomes two directed edges, each once; self loops are dropped. Node data: ``feat`` float32 (N, F),
    each column with mean 0 and standard deviation 1, a constant column all 0 (left out if the file has no features);
    ``label`` int64 (N,); bool masks (N,) of a random 60/20/20 split. ``num_classes`` is the largest label + 1.

    Args:
        path: the file. It is read without unpickling, and nothing is written.
        seed: of the split: equal seeds give equal splits, on every machine.

    Raises:
        InputError: the file is missing, damaged, pickled or inconsistent.
    """
    path = Path(path).expanduser()
    return _load(path, str(path), seed)


def load_amazon(name: str, *, root: Path, seed: int = 0, download: bool = False) -> Dataset:
    """Load ``amazon-computers`` or ``amazon-photo`` from ``root``; prepared like ``load_npz``.

    Args:
        name: a key of ``SPECS``.
        root: folder that holds ``<stem>.npz``, the zip that DGL downloads, or DGL's own data folder.
        seed: of the split.
        download: fetch DGL's zip into ``root`` when none of these is there.

    Raises:
        InputError: not there (with the steps to get it), damaged, or not the published data.
    """
    spec = SPECS[name]
    root = Path(root).expanduser()
    # The plain file, the file of gnn-benchmark, DGL's folder (its name ends in a hash), DGL's zip.
    places = [root / f"{spec.stem}.npz", root / f"{spec.original}.npz", *sorted(root.glob(f"{spec.stem}*/*.npz"))]
    found = next((path for path in [*places, root / f"{spec.stem}.zip"] if path.is_file()), None)
    path = found or _download(spec, name, root, download)
    dataset = _load(path, name, seed, member=f"{spec.stem}.npz" if path.suffix == ".zip" else "")
    got = (dataset.graph.num_nodes(), dataset.graph.num_edges(), dataset.num_features, dataset.num_classes)
    expected = (spec.nodes, spec.edges, spec.features, spec.classes)
    if got != expected:
        text = f"{path}: nodes, edges, features, classes are {got}; {name} has {expected}"
        raise InputError(text, "It is another data set or version: pass its path in place of the name to use it.")
    return dataset


def _download(spec: AmazonSpec, name: str, root: Path, allowed: bool) -> Path:
    url = os.environ.get("DGL_REPO", "https://data.dgl.ai").rstrip("/") + f"/dataset/{spec.stem}.zip"
    target = root / f"{spec.stem}.zip"
    steps = (
        f"{name} is a download of {spec.size}, licence: MIT (github.com/shchur/gnn-benchmark).\n"
        "With a network: allow the download (download=True; command line: --download).\n"
        f"Without: fetch {url} elsewhere and copy it to {target}; or fetch\n"
        f"https://github.com/shchur/gnn-benchmark/raw/master/data/npz/{spec.original}.npz and copy it to\n"
        f"{root / spec.stem}.npz; or pass the path of the .npz in place of the name. Then run the same command again."
    )
    if not allowed:
        raise InputError(f"{name}: neither {spec.stem}.npz nor {spec.stem}.zip is in {root}", steps)
    with alone_in(root, WAIT_SECONDS):
        if not target.is_file():  # else another process was quicker
            fetch(url, target, steps)
    return target


def _load(path: Path, name: str, seed: int, member: str = "") -> Dataset:
    import dgl

    arrays = _read(path, member)
    if not 0 <= seed < 2**32:
        raise InputError(f"seed is {seed}, expected 0 to {2**32 - 1}")
    ones = np.ones(arrays["adj_data"].shape, dtype=bool)  # one True per stored pair of nodes; the weights are not used
    adjacency = _csr(path, {**arrays, "adj_data": ones}, "adj")
    n, columns = adjacency.shape
    if n != columns:
        raise InputError(f"{path}: adj_shape is [{n}, {columns}], expected a square matrix")
    adjacency.sum_duplicates()
    both_ways = adjacency.maximum(adjacency.T).tocoo()
    keep = both_ways.row != both_ways.col
    ends = (torch.from_numpy(end[keep].astype(np.int64)) for end in (both_ways.row, both_ways.col))
    graph = dgl.graph(tuple(ends), num_nodes=n)
    label = arrays["labels"]
    label = label.astype(np.int64) if label.dtype.kind in "iu" else label
    check_labels(str(path), torch.from_numpy(label), n)
    label, _ = class_numbers(label, np.zeros(n, bool), lambda row: f"{path}: labels, row {row}")
    feat = _features(path, arrays)
    if feat is not None:
        check_features(str(path), torch.from_numpy(feat), n)
        feat = standardise(feat)
    info = {"file": str(path), "edges_in_the_file": adjacency.nnz, "directed": False, "standardised": feat is not None}
    masks = {name: arrays[name] for name in MASKS if name in arrays}
    graph.ndata.update(node_data(feat, label, Nodes(path, Names(range(n)), masks).split(seed, info)))
    return Dataset(name, graph, int(label.max()) + 1, info)


def standardise(feat: np.ndarray) -> np.ndarray:
    """Each column of the float32 array (N, F) shifted to mean 0 and scaled to standard deviation 1; constants to 0.

    Amazon's features are 0/1 words: as they are, GraphSAGE reaches 38 to 70 %, standardised 89 to 90 %.
    """
    constant = feat.min(axis=0) == feat.max(axis=0)
    feat = feat - feat.mean(axis=0, dtype=np.float64).astype(np.float32)
    std = np.sqrt(np.einsum("ij,ij->j", feat, feat, dtype=np.float64) / len(feat)).astype(np.float32)
    constant |= std < np.finfo(np.float32).tiny  # too small a difference to divide by
    feat /= np.where(constant, np.float32(1), std)
    feat[:, constant] = 0
    return feat


def _read(path: Path, member: str) -> dict[str, np.ndarray]:
    """The arrays that the layout knows, from ``path`` or from its member; anything unreadable is an InputError."""
    if not path.is_file():
        raise InputError(f"{path}: no such file" if not path.exists() else f"{path}: is not a file")
    try:
        with path.open("rb") as file:
            stream = io.BytesIO(zipfile.ZipFile(file).read(member)) if member else file
            start = stream.read(2)
            stream.seek(0)
            if start != b"PK":  # numpy takes other bytes for a pickle, and its message says so
                what = "is not an .npz file (a zip of numpy arrays)" if start else "is empty"
                raise InputError(f"{path}: {what}")
            with np.load(stream, allow_pickle=False) as arrays:
                names = set(arrays.files)
                wanted = [*ADJACENCY, "labels", *(SPARSE if names & set(SPARSE) else names & {"attr_matrix"})]
                if len(wanted) == 5 and (other := sorted(names & {"feat", "features", "x"})):
                    text = f"{path}: features are looked for in attr_matrix or attr_*, and the file has {other[0]}"
                    raise InputError(text, "Save them under that name.")
                wanted += names & set(MASKS)
                if missing := [key for key in wanted if key not in names]:
                    there = f"It has: {', '.join(arrays.files) or 'nothing'}."
                    raise InputError(f"{path}: has no {', '.join(missing)}", there)
                return {key: _array(path, arrays, key) for key in wanted}
    except InputError:
        raise
    except MemoryError:
        raise no_memory(path) from None
    except Exception as error:  # numpy, zipfile and zlib each have their own for a bad file
        text = f"{path}: cut off or damaged: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(text, "Copy the file again.") from error


def _array(path: Path, arrays: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    try:
        array = arrays[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        text = f"{path}: {key} is an array of Python objects; unpickling a file can run any code, so it is refused"
        raise InputError(text, "Save it again as an array of numbers, where you trust its source.") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{path}: {key} has dtype {array.dtype}, expected numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _csr(path: Path, arrays: Mapping[str, np.ndarray], prefix: str) -> sparse.csr_matrix:
    """The CSR matrix of ``<prefix>_*``, checked by scipy where it does not do so of itself."""
    data, indices, indptr, shape = (arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    try:
        if any(array.dtype.kind not in "iu" for array in (indices, indptr, shape)):
            raise ValueError(f"indices are {indices.dtype}, indptr {indptr.dtype}, shape {shape.dtype}, not integers")
        if shape.shape != (2,) or shape.min() < 1:
            raise ValueError(f"shape is {shape.tolist()}, expected two positive numbers")
        matrix = sparse.csr_matrix((data, indices.astype(np.int64), indptr.astype(np.int64)), shape=shape.tolist())
        matrix.check_format(full_check=True)
        if len(indices) != indptr[-1]:
            raise ValueError(f"indptr leads to {indptr[-1]} of {len(indices)} entries")
    except ValueError as error:
        raise InputError(f"{path}: {prefix}_* are not the arrays of a CSR matrix: {error}") from error
    return matrix


def _features(path: Path, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """float32, or None for a file without features."""
    if "attr_data" not in arrays:
        return arrays["attr_matrix"].astype(np.float32) if "attr_matrix" in arrays else None
    matrix = _csr(path, arrays, "attr").astype(np.float32)
    try:
        return matrix.toarray()
    except (MemoryError, ValueError) as error:
        raise InputError(f"{path}: features of attr_shape {list(matrix.shape)} do not fit in memory") from error
