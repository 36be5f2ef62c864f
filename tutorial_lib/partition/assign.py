"""Assign each node to a part, with KaMinPar, at random, or from a file."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tutorial_lib.data.base import ends
from tutorial_lib.data.pairs import Pairs
from tutorial_lib.errors import InputError
from tutorial_lib.files import sha256_of

if TYPE_CHECKING:
    import dgl

REMOVED_METHODS = ("auto", "metis", "multilevel", "streaming")
NODE_IMBALANCE, TRAIN_IMBALANCE = 0.03, 1.03
BLOCK = 1 << 24  # entries of an array that are converted together
Log = Callable[[str], None]


def available_method(method: str, log: Log = lambda _text: None) -> str:
    """Return the name of a method in manifests and folder names. ``random`` replaces a missing KaMinPar."""
    if method.endswith(".npy"):
        if not (file := Path(method)).is_file():
            raise InputError(f"--method {method}: there is no such file")
        return f"file-{sha256_of(file)[:12]}"
    if method not in ("kaminpar", "random"):
        problem = "was removed" if method in REMOVED_METHODS else "does not exist"
        remedy = "Use --method kaminpar, random or FILE.npy. Lesson 04 calls DGL's METIS itself."
        raise InputError(f"the partition method {method} {problem}", remedy)
    if method == "kaminpar" and find_spec("kaminpar") is None:
        log("kaminpar is not installed for this Python, so the nodes are partitioned at random")
        return "random"
    return method


def assign_nodes(
    graph: dgl.DGLGraph | Pairs, parts: int, method: str, scratch: Path, train: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Return the part of each node as an int64 array of shape (N,), with the node types one after the other.

    Args:
        scratch: folder for a temporary file of 8 bytes per edge.
        train: int64 IDs of training nodes. KaMinPar's parts are corrected until each of them holds at most 3 % more
            than its share of these nodes.
    """
    n = graph.num_nodes()
    if method.endswith(".npy"):
        part_of = _read_assignment(Path(method), n, parts)
    elif method == "random" or parts == 1:
        part_of = np.random.default_rng(seed).permutation(n) % parts
    else:
        part_of = _run_kaminpar(graph, parts, scratch / "graph.parhip", train, seed)
    empty = np.flatnonzero(np.bincount(part_of, minlength=parts) == 0)
    if len(empty):
        text = f"{method} could not cut {n} nodes into {parts} parts: part {empty[0]} has no node"
        raise InputError(text, "Use fewer parts, or --method random.")
    return part_of


def _read_assignment(file: Path, n: int, parts: int) -> np.ndarray:
    try:
        with file.open("rb") as content:
            part_of = np.lib.format.read_array(content, allow_pickle=False).astype(np.int64, casting="same_kind")
        if part_of.shape != (n,) or part_of.min() < 0 or part_of.max() >= parts:
            shown = f"shape {part_of.shape} and parts {part_of.min()} to {part_of.max()}"
            raise ValueError(f"{shown}, expected shape ({n},) and parts 0 to {parts - 1}")
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"--method {file}: {error}", "Write an integer array with the part of each node.") from None
    return part_of


def undirected_adjacency(graph: dgl.DGLGraph | Pairs) -> sp.csr_array:
    """Return which nodes are neighbors, without directions, multiplicities and self loops: bool of shape (N, N)."""
    n = graph.num_nodes()
    if isinstance(graph, Pairs):  # the reverse edges are added below
        pieces = [(graph.low, graph.high)]
    else:
        pieces, first = [], type_offsets(graph)
        for relation in graph.canonical_etypes:
            for src, dst in zip(*(ends(graph, relation, of) for of in (0, 1)), strict=True):
                one, other = (src + first[relation[0]]).int().numpy(), (dst + first[relation[2]]).int().numpy()
                pieces.append((one[one != other], other[one != other]))
    row, column = (np.concatenate(side) for side in zip(*pieces, strict=True))
    one_way = sp.coo_array((np.ones(len(row), bool), (row, column)), shape=(n, n)).tocsr()
    del row, column, pieces
    if isinstance(graph, Pairs):
        graph.let_go()
    return one_way + one_way.T.tocsr()


def offsets(counts: np.ndarray | list[int]) -> np.ndarray:
    """Return where each of several runs begins, followed by the total: int64 of shape (len + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def type_offsets(graph: dgl.DGLGraph | Pairs) -> dict[str, int]:
    """Return the ID of the first node of each type, where the types are one after the other."""
    return dict(zip(graph.ntypes, offsets([graph.num_nodes(kind) for kind in graph.ntypes]).tolist(), strict=False))


def _run_kaminpar(graph: dgl.DGLGraph | Pairs, parts: int, file: Path, train: np.ndarray, seed: int) -> np.ndarray:
    """Partition a graph with KaMinPar, and balance the training nodes.

    KaMinPar's Python package only reads files. A file in the ParHIP format holds a version (3: no weights, 64-bit
    numbers), n, m, the offset of each node's neighbors in the file in bytes, and the neighbors.
    """
    import kaminpar

    adjacency = undirected_adjacency(graph)
    n, m, rows = adjacency.shape[0], adjacency.nnz, adjacency[train]
    with file.open("wb") as out:
        np.array([3, n, m], np.uint64).tofile(out)
        (8 * (n + 4) + 8 * adjacency.indptr.astype(np.uint64)).tofile(out)
        for at in range(0, m, BLOCK):
            adjacency.indices[at : at + BLOCK].astype(np.uint64).tofile(out)
    del adjacency  # KaMinPar needs this memory
    loaded = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP)
    file.unlink()
    kaminpar.reseed(seed)
    partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())  # deterministic only with one thread
    part_of = np.array(partitioner.compute_partition(loaded, parts, NODE_IMBALANCE), np.int64)
    balance_nodes(rows, train, part_of, parts)
    return part_of


def balance_nodes(rows: sp.csr_array, nodes: np.ndarray, part_of: np.ndarray, parts: int) -> None:
    """Change ``part_of`` until each part has at most 3 % more than its share of ``nodes``.

    The nodes that cost the fewest additional cut edges move first. ``rows`` are their rows of the adjacency matrix.
    """
    key = np.repeat(np.arange(len(nodes)) * parts, np.diff(rows.indptr)) + part_of[rows.indices]
    links = np.bincount(key, minlength=len(nodes) * parts).reshape(len(nodes), parts)
    limit = int(np.ceil(TRAIN_IMBALANCE * len(nodes) / parts))
    for part in range(parts):
        while (excess := int((part_of[nodes] == part).sum()) - limit) > 0:
            room = limit - np.bincount(part_of[nodes], minlength=parts)
            mine = np.flatnonzero(part_of[nodes] == part)
            cost = np.where(room > 0, links[mine, part, None] - links[mine], np.iinfo(np.int64).max)
            best = cost.argmin(axis=1)
            target = best[cost.min(axis=1).argmin()]
            chosen = mine[best == target][np.argsort(cost[best == target, target], kind="stable")]
            part_of[nodes[chosen[: min(excess, room[target])]]] = target
