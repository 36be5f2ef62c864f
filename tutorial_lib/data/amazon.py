"""Amazon Computers, Amazon Photo, and any ``.npz`` file in their layout.

The layout is that of https://github.com/shchur/gnn-benchmark ("Pitfalls of Graph Neural Network Evaluation",
arXiv:1811.05868): a graph of N nodes as CSR arrays ``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``;
features as ``attr_*`` in the same form or as one dense ``attr_matrix``, or none; ``labels``, integers of shape (N,).

    load_amazon -> the file: ROOT/<name>.npz, or where DGL or the user put it, or a download that was allowed
    load_npz    -> _read (keys, no pickles) -> _adjacency, _features, _labels (shapes, ranges) -> Dataset

``dgl.data.AmazonCoBuyComputerDataset`` reads the same file, but it unpickles it, renumbers the nodes without keeping
their old numbers, and downloads again without a word when its cache is damaged. So its file is used, not its code.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from scipy import sparse

from tutorial_lib.data.base import Dataset, masks_of
from tutorial_lib.data.download import WAIT_SECONDS, fetch
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in

ADJACENCY = ("adj_data", "adj_indices", "adj_indptr", "adj_shape")
SPARSE = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")
SPLIT = (0.6, 0.2, 0.2)  # train, validation, test


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
    spec = SPECS.get(name)
    if spec is None:
        raise InputError(f"unknown Amazon data set {name!r}", f"Known: {', '.join(SPECS)}.")
    root = Path(root).expanduser()
    path = _find(spec, root) or _download(spec, name, root, download)
    dataset = _load(path, name, seed, member=f"{spec.stem}.npz" if path.suffix == ".zip" else "")
    got = (dataset.graph.num_nodes(), dataset.graph.num_edges(), dataset.num_features, dataset.num_classes)
    expected = (spec.nodes, spec.edges, spec.features, spec.classes)
    if got != expected:
        text = f"{path}: nodes, edges, features, classes are {got}; {name} has {expected}"
        raise InputError(text, "It is another data set or version: pass its path in place of the name to use it.")
    return dataset


def _find(spec: AmazonSpec, root: Path) -> Path | None:
    """The first of: the plain file, the file of gnn-benchmark, DGL's folder (its name ends in a hash), DGL's zip."""
    places = [root / f"{spec.stem}.npz", root / f"{spec.original}.npz", *sorted(root.glob(f"{spec.stem}*/*.npz"))]
    return next((path for path in [*places, root / f"{spec.stem}.zip"] if path.is_file()), None)


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
    adjacency = _adjacency(path, arrays)
    n = adjacency.shape[0]
    label = _labels(path, arrays["labels"], n)
    feat = _features(path, arrays, n)
    both_ways = adjacency.maximum(adjacency.T).tocoo()
    keep = both_ways.row != both_ways.col
    ends = (torch.from_numpy(end[keep].astype(np.int64)) for end in (both_ways.row, both_ways.col))
    graph = dgl.graph(tuple(ends), num_nodes=n)
    graph.ndata["label"] = torch.from_numpy(label)
    if feat is not None:
        graph.ndata["feat"] = torch.from_numpy(standardise(feat))
    graph.ndata.update(masks_of(random_split(n, seed)))
    info = {"file": str(path), "seed": seed, "split": list(SPLIT), "standardised": feat is not None}
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


def random_split(n: int, seed: int) -> np.ndarray:
    """0 (train), 1 (validation) or 2 (test) for each of n nodes, in the proportions of ``SPLIT``: uint8 (n,)."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed is {seed}, expected 0 to {2**32 - 1}")
    # RandomState: the only numpy generator whose stream is promised never to change.
    order = np.random.RandomState(seed).permutation(n)
    split = np.full(n, 2, np.uint8)
    split[order[: round((SPLIT[0] + SPLIT[1]) * n)]] = 1
    split[order[: round(SPLIT[0] * n)]] = 0
    return split


def _read(path: Path, member: str) -> dict[str, np.ndarray]:
    """The arrays that the layout knows, from ``path`` or from its member; anything unreadable is an InputError."""
    if not path.is_file():
        raise InputError(f"{path}: no such file" if not path.exists() else f"{path}: is not a file")
    try:
        if member:
            with zipfile.ZipFile(path) as zipped:
                return _arrays(path, io.BytesIO(zipped.read(member)))
        with open(path, "rb") as stream:
            return _arrays(path, stream)
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        RuntimeError,
        MemoryError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        text = f"{path}: cut off or damaged: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(text, "Copy the file again.") from error


def _arrays(path: Path, stream: BinaryIO) -> dict[str, np.ndarray]:
    start = stream.read(4)
    stream.seek(0)
    if start[:2] != b"PK":  # numpy takes other bytes for a pickle, and its message says so
        raise InputError(f"{path}: is not an .npz file (a zip of numpy arrays)" if start else f"{path}: is empty")
    with np.load(stream, allow_pickle=False) as arrays:
        features = [SPARSE] if set(SPARSE) & set(arrays.files) else [("attr_matrix",)] * ("attr_matrix" in arrays)
        wanted = [*ADJACENCY, "labels", *(key for group in features for key in group)]
        if missing := [key for key in wanted if key not in arrays]:
            raise InputError(f"{path}: has no {', '.join(missing)}", f"It has: {', '.join(arrays.files) or 'nothing'}.")
        return {key: _array(path, arrays, key) for key in wanted}


def _array(path: Path, arrays: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        array = arrays[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        text = f"{path}: {key} is an array of Python objects; unpickling a file can run any code, so it is refused"
        raise InputError(text, "Save it again as an array of numbers, where you trust its source.") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{path}: {key} has dtype {array.dtype}, expected numbers")
    return array


def _csr(path: Path, arrays: dict[str, np.ndarray], prefix: str) -> sparse.csr_matrix:
    """The CSR matrix of ``<prefix>_*``; scipy alone would accept several of these faults, or crash on them."""
    data, indices, indptr, shape = (arrays[f"{prefix}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    for part, array in (("indices", indices), ("indptr", indptr), ("shape", shape)):
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise InputError(f"{path}: {prefix}_{part} is {array.dtype} {array.shape}, expected a list of integers")
    if len(shape) != 2 or shape.min() < 1:
        raise InputError(f"{path}: {prefix}_shape is {shape.tolist()}, expected two positive numbers")
    rows, columns = map(int, shape)
    if len(indptr) != rows + 1:
        raise InputError(f"{path}: {prefix}_indptr has {len(indptr)} entries, expected {rows + 1} (rows + 1)")
    indptr = indptr.astype(np.int64)
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise InputError(f"{path}: {prefix}_indptr does not rise from 0 to the {len(indices)} entries of its indices")
    if data.shape != indices.shape:
        raise InputError(f"{path}: {prefix}_data has shape {data.shape}, {prefix}_indices {indices.shape}")
    if len(indices) and (indices.min() < 0 or indices.max() >= columns):
        text = f"{path}: {prefix}_indices run from {indices.min()} to {indices.max()}, expected 0 to {columns - 1}"
        raise InputError(text)
    return sparse.csr_matrix((data, indices.astype(np.int64), indptr), shape=(rows, columns))


def _adjacency(path: Path, arrays: dict[str, np.ndarray]) -> sparse.csr_matrix:
    """One True per stored pair of nodes; the weights in ``adj_data`` are not used."""
    arrays = {**arrays, "adj_data": np.ones(arrays["adj_data"].shape, dtype=bool)}
    matrix = _csr(path, arrays, "adj")
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{path}: adj_shape is {list(matrix.shape)}, expected a square matrix")
    matrix.sum_duplicates()
    return matrix


def _labels(path: Path, labels: np.ndarray, n: int) -> np.ndarray:
    if labels.shape != (n,):
        raise InputError(f"{path}: labels have shape {labels.shape}, expected ({n},): one for each node")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {labels.dtype}, expected integers")
    labels = labels.astype(np.int64)
    if labels.min() < 0:
        raise InputError(f"{path}: {int((labels < 0).sum())} labels are negative, the smallest {labels.min()}")
    return labels


def _features(path: Path, arrays: dict[str, np.ndarray], n: int) -> np.ndarray | None:
    """float32 (N, F), or None for a file without features."""
    if "attr_data" in arrays:
        matrix = _csr(path, arrays, "attr").astype(np.float32)
        try:
            feat = matrix.toarray()
        except (MemoryError, ValueError) as error:
            raise InputError(f"{path}: features of attr_shape {list(matrix.shape)} do not fit in memory") from error
    elif "attr_matrix" in arrays:
        feat = arrays["attr_matrix"].astype(np.float32)
    else:
        return None
    if feat.ndim != 2 or len(feat) != n or feat.shape[1] == 0:
        raise InputError(f"{path}: features have shape {feat.shape}, expected ({n}, number of features)")
    if not np.isfinite(feat).all():
        rows = np.flatnonzero(~np.isfinite(feat).all(axis=1))
        raise InputError(f"{path}: features are NaN or infinite in {len(rows)} of {n} rows, first in row {rows[0]}")
    return feat
