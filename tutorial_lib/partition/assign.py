"""Assign each node to a part, with KaMinPar, at random, or from a file."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from tutorial_lib.data.base import Dataset, Pairs, read_endpoints, release_pages
from tutorial_lib.data.tables import read_array
from tutorial_lib.errors import InputError

BLOCK = 1 << 20  # entries of an array that are converted together
COMPRESSED = 2**28  # neighbors. Larger graphs are compressed, which takes two thirds of the memory, twice the time


def assign_nodes(dataset: Dataset, parts: int, method: str, scratch: Path, train: np.ndarray, seed: int) -> np.ndarray:
    """Return the part of each node: int64 (N,). KaMinPar's parts are balanced by ``train``, the IDs of some nodes."""
    n = dataset.structure.num_nodes()
    if method.endswith(".npy"):
        part_of = read_array(Path(method))
        if part_of.dtype.kind not in "iu" or part_of.shape != (n,) or part_of.min() < 0 or part_of.max() >= parts:
            raise InputError(f"--method {method}: expected an array of {n} integers from 0 to {parts - 1}")
        part_of = part_of.astype(np.int64)
    elif method == "random" or parts == 1:
        part_of = np.random.default_rng(seed).permutation(n) % parts
    else:
        part_of = _run_kaminpar(dataset, parts, scratch / "graph.parhip", train, seed)
    if np.bincount(part_of, minlength=parts).min() == 0:  # a part without nodes
        raise InputError(f"{method} could not cut {n} nodes into {parts} parts", "Use fewer parts, or --method random.")
    return part_of


def undirected_adjacency(dataset: Dataset) -> sp.csr_array:
    """Return which nodes are neighbors, without directions, multiplicities and self loops: bool of shape (N, N)."""
    graph = dataset.structure
    if isinstance(graph, Pairs):  # the reverse edges are added below
        pairs = [(graph.low, graph.high)]
    else:
        pairs, start = [], type_offsets(dataset)
        for relation in graph.canonical_etypes:
            for src, dst in zip(*(read_endpoints(graph, relation, endpoint) for endpoint in (0, 1)), strict=True):
                src_ids = (src + start[relation[0]]).int().numpy()
                dst_ids = (dst + start[relation[2]]).int().numpy()
                pairs.append((src_ids[src_ids != dst_ids], dst_ids[src_ids != dst_ids]))
    row, column = pairs[0] if len(pairs) == 1 else map(np.concatenate, zip(*pairs, strict=True))
    one_way = sp.coo_array((np.ones(len(row), bool), (row, column)), shape=[graph.num_nodes()] * 2).tocsr()
    del row, column, pairs
    release_pages(graph)
    return one_way + one_way.T.tocsr()


def offsets(counts: np.ndarray | list[int]) -> np.ndarray:
    """Return the exclusive prefix sum of the counts, followed by the total: int64 of shape (len + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def type_offsets(dataset: Dataset) -> dict[str, int]:
    """Return the ID of the first node of each type, where the types are one after the other."""
    graph = dataset.structure
    return dict(zip(graph.ntypes, offsets([graph.num_nodes(ntype) for ntype in graph.ntypes]).tolist(), strict=False))


def _run_kaminpar(dataset: Dataset, parts: int, file: Path, train: np.ndarray, seed: int) -> np.ndarray:
    import kaminpar

    adjacency = undirected_adjacency(dataset)
    n, m, train_rows = adjacency.shape[0], adjacency.nnz, adjacency[train]
    with file.open("wb") as out:  # KaMinPar's Python package only reads files, here in the ParHIP format
        np.array([3, n, m], np.uint64).tofile(out)  # version 3 has no weights and 64-bit numbers
        (8 * (n + 4) + 8 * adjacency.indptr.astype(np.uint64)).tofile(out)  # where the neighbors are, in bytes
        for start in range(0, m, BLOCK):
            adjacency.indices[start : start + BLOCK].astype(np.uint64).tofile(out)
    del adjacency  # KaMinPar needs this memory
    graph = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP, compress=m > COMPRESSED)
    file.unlink()
    kaminpar.reseed(seed)
    partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())  # deterministic only with one thread
    part_of = np.array(partitioner.compute_partition(graph, parts, 0.03), np.int64)
    balance_nodes(train_rows, train, part_of, parts)
    return part_of


def balance_nodes(rows: sp.csr_array, nodes: np.ndarray, part_of: np.ndarray, parts: int) -> None:
    """Move ``nodes`` until no part has 3 % more than its share, those first that cost the fewest cut edges."""
    pair_index = np.repeat(np.arange(len(nodes)) * parts, np.diff(rows.indptr)) + part_of[rows.indices]
    links = np.bincount(pair_index, minlength=len(nodes) * parts).reshape(len(nodes), parts)
    limit = int(np.ceil(1.03 * len(nodes) / parts))
    for part in range(parts):
        while (excess := int((part_of[nodes] == part).sum()) - limit) > 0:
            num_free = limit - np.bincount(part_of[nodes], minlength=parts)
            members = np.flatnonzero(part_of[nodes] == part)
            cost = np.where(num_free > 0, links[members, part, None] - links[members], np.iinfo(np.int64).max)
            best_part = cost.argmin(axis=1)
            target = best_part[cost.min(axis=1).argmin()]
            chosen = members[best_part == target][np.argsort(cost[best_part == target, target], kind="stable")]
            part_of[nodes[chosen[: min(excess, num_free[target])]]] = target
