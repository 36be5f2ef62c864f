"""Which part each node goes to: by KaMinPar, at random, or as a file lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tutorial_lib.data.base import Pairs, ends
from tutorial_lib.errors import InputError
from tutorial_lib.files import sha256_of

if TYPE_CHECKING:
    import dgl

DEFAULT_METHOD = "kaminpar"
REMOVED_METHODS = ("auto", "metis", "multilevel", "streaming")
NODE_IMBALANCE, TRAIN_IMBALANCE = 0.03, 1.03
BLOCK = 1 << 24  # entries of an array that are converted together


def available_method(method: str, log: Callable[[str], None] = lambda _text: None) -> str:
    """Return the name under which a method is recorded in manifests and folder names.

    Args:
        method: ``kaminpar``, ``random``, or the path of an .npy file.
        log: receives one sentence if KaMinPar has no wheel for this Python. ``random`` replaces it then.

    Raises:
        InputError: the method is unknown or has been removed, or the file does not exist.
    """
    if method.endswith(".npy"):
        if not (file := Path(method)).is_file():
            raise InputError(f"--method {method}: there is no such file")
        return f"file-{sha256_of(file)[:12]}"
    if method == DEFAULT_METHOD:
        try:
            import kaminpar  # noqa: F401
        except ImportError:
            log("kaminpar is not installed for this Python, so the nodes are partitioned at random")
            return "random"
    elif method in REMOVED_METHODS:
        remedy = "Use --method kaminpar, random or FILE.npy. Lesson 04 calls DGL's METIS itself."
        raise InputError(f"the partition method {method} was removed", remedy)
    elif method != "random":
        raise InputError(f"unknown partition method {method!r}", "Use kaminpar, random or the path of an .npy file.")
    return method


def assign_nodes(
    graph: dgl.DGLGraph | Pairs, parts: int, method: str, scratch: Path, *, train: np.ndarray | None, seed: int = 0
) -> np.ndarray:
    """Return the part of each node, with the node types one after the other as in ``graph.ntypes``.

    Args:
        graph: N nodes of one or several types.
        method: ``kaminpar``, ``random``, or the path of an .npy file.
        scratch: folder for a temporary file of 8 bytes per edge.
        train: bool array of shape (N,). KaMinPar's parts are corrected until each of them holds at most 3 % more than
            its share of these nodes. None skips this step.
        seed: equal seeds give equal partitions.

    Returns:
        int64 array of shape (N,).

    Raises:
        InputError: a part has no node, or the file does not fit to the graph.
    """
    n = graph.num_nodes()
    if method.endswith(".npy"):
        part_of = read_assignment(Path(method), n, parts)
    elif parts == 1:
        part_of = np.zeros(n, np.int64)
    elif method == "random":
        part_of = np.random.default_rng(seed).permutation(n) % parts
    else:
        adjacency = undirected_adjacency(graph)
        nodes = np.flatnonzero(train if train is not None else [])
        rows, file = adjacency[nodes], scratch / "graph.parhip"
        write_parhip(adjacency, file)
        del adjacency  # KaMinPar needs this memory
        part_of = _run_kaminpar(file, n, parts, seed)
        balance_nodes(rows, nodes, part_of, parts)
    empty = np.flatnonzero(np.bincount(part_of, minlength=parts) == 0)
    if len(empty):
        text = f"{method} could not cut {n} nodes into {parts} parts: part {empty[0]} has no node"
        raise InputError(text, "Use fewer parts, or --method random.")
    return part_of


def read_assignment(file: Path, n: int, parts: int) -> np.ndarray:
    """Read the part of each node from an .npy file and validate it."""
    try:
        part_of = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--method {file}: {error}") from None
    if not isinstance(part_of, np.ndarray) or part_of.shape != (n,) or part_of.dtype.kind not in "iu":
        shown = f"{getattr(part_of, 'dtype', 'several arrays')} of shape {getattr(part_of, 'shape', '')}"
        raise InputError(f"--method {file} holds {shown}, expected integers of shape ({n},)")
    if part_of.min() < 0 or part_of.max() >= parts:
        text = f"--method {file} holds parts {part_of.min()} to {part_of.max()}, expected 0 to {parts - 1}"
        raise InputError(text, "Change the file or --parts.")
    return part_of.astype(np.int64)


def undirected_adjacency(graph: dgl.DGLGraph | Pairs) -> sp.csr_array:
    """Return which nodes are neighbors, without directions, multiplicities and self loops: bool of shape (N, N)."""
    n = graph.num_nodes()
    first = dict(zip(graph.ntypes, offsets([graph.num_nodes(kind) for kind in graph.ntypes]), strict=False))
    if isinstance(graph, Pairs):  # the reverse edges are added below
        rows, columns = [graph.low], [graph.high]
    else:
        rows, columns = [], []
        for relation in graph.canonical_etypes:
            for src, dst in zip(*(ends(graph, relation, of) for of in (0, 1)), strict=True):
                one, other = (src + first[relation[0]]).int().numpy(), (dst + first[relation[2]]).int().numpy()
                columns.append(one[one != other])
                rows.append(other[one != other])
    row, column = (of[0] if len(of) == 1 else np.concatenate(of) for of in (rows, columns))
    one_way = sp.coo_array((np.ones(len(row), bool), (row, column)), shape=(n, n)).tocsr()
    del row, column, rows, columns
    if isinstance(graph, Pairs):
        graph.let_go()
    return one_way + one_way.T.tocsr()


def offsets(counts: np.ndarray | list[int]) -> np.ndarray:
    """Return where each of several runs begins, followed by the total: int64 of shape (len + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def write_parhip(adjacency: sp.csr_array, file: Path) -> None:
    """Write a graph without weights in the ParHIP format, because KaMinPar's Python package only reads files.

    The file holds a version (3: no weights, 64-bit numbers), n, m, the offset of each node's neighbors in the file in
    bytes, and the neighbors.
    """
    n, m = adjacency.shape[0], adjacency.nnz
    with file.open("wb") as out:
        np.array([3, n, m], np.uint64).tofile(out)
        (8 * (n + 4) + 8 * adjacency.indptr.astype(np.uint64)).tofile(out)
        for at in range(0, m, BLOCK):
            adjacency.indices[at : at + BLOCK].astype(np.uint64).tofile(out)


def _run_kaminpar(file: Path, n: int, parts: int, seed: int) -> np.ndarray:
    """Partition the graph in a ParHIP file and remove the file. KaMinPar is deterministic only with one thread."""
    import kaminpar

    has_edges = file.stat().st_size > 8 * (n + 4)
    graph = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP) if has_edges else None
    file.unlink()
    if graph is None:
        return np.random.default_rng(seed).permutation(n) % parts
    kaminpar.reseed(seed)
    partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())  # one thread
    return np.array(partitioner.compute_partition(graph, parts, NODE_IMBALANCE), np.int64)


def balance_nodes(rows: sp.csr_array, nodes: np.ndarray, part_of: np.ndarray, parts: int) -> None:
    """Move nodes out of overfull parts, the nodes that cost the fewest additional cut edges first.

    Args:
        rows: the rows of ``nodes`` in the adjacency matrix.
        nodes: int64 array. Each part keeps at most 3 % more than its share of these nodes.
        part_of: int64 array of shape (N,), changed in place.
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
