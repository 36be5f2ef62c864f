"""The graph as a sparse matrix with 32-bit ids: row v holds the nodes at the other ends of node v's edges.

DGL holds an edge as two 64-bit ids and makes further copies to look nodes up. Everything in this package that has to
look at a whole graph does it over such a matrix instead, a block of rows at a time: temporary arrays then have the size
of a block, whatever the size of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tutorial_lib.data.pairs import PIECE, Pairs

if TYPE_CHECKING:
    import dgl

BLOCK = 1 << 21  # entries that are looked at together; about 100 bytes of temporary arrays for each


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where each of several runs begins, and the total last: int64 (len + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def blocks(matrix: sp.csr_array, order: np.ndarray, least: int = 1) -> list[np.ndarray]:
    """Cut a list of nodes into at least ``least`` blocks, none with much more than BLOCK entries."""
    entries = np.cumsum(matrix.indptr[order + 1] - matrix.indptr[order])
    if not len(entries):
        return []
    count = max(least, int(entries[-1]) // BLOCK + 1)
    cuts = np.searchsorted(entries, entries[-1] * np.arange(1, count) / count)
    return [block for block in np.split(order, cuts) if len(block)]


def in_edges(graph: dgl.DGLGraph | Pairs, new_id: np.ndarray | None = None, *, edge_ids: bool = True) -> sp.csr_array:
    """The edges in the order of their destinations.

    Args:
        graph: homogeneous, N nodes, E edges.
        new_id: int32 (N,): number the nodes anew at the same time; entry v is the new id of node v.
        edge_ids: False puts ones (int8) in place of the ids, and saves their memory.

    Returns:
        (N, N) with E entries: row v, column u, the id that an edge from u to v has in ``graph``; all int32. Edges with
        the same destination keep the order of their ids. (More than 2**31 edges: 64 bits where they are needed.)
    """
    if isinstance(graph, Pairs):
        matrix = _both_ways(graph, edge_ids)
        return matrix if new_id is None else _numbered_anew(matrix, new_id)
    ends = [end.numpy() for end in graph.edges(order="eid")]
    src, dst = (end.astype(np.int32) if new_id is None else new_id[end] for end in ends)
    count = len(src)
    data = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64) if edge_ids else np.ones(count, np.int8)
    coo = sp.coo_array((data, (dst, src)), shape=(graph.num_nodes(),) * 2)
    coo.has_canonical_format = True  # scipy would otherwise add up edges that join the same two nodes
    return coo.tocsr()


def _both_ways(graph: Pairs, edge_ids: bool) -> sp.csr_array:
    """``in_edges`` of pairs: in the row of a node first the lower neighbours, then the higher ones, each in order."""
    low, high, n, pairs = graph.low, graph.high, graph.num_nodes(), len(graph.low)
    number = np.int32 if 2 * pairs < 2**31 else np.int64
    # Pairs are sorted by their low end: turned into rows of their high end, they keep that order.
    data = np.arange(pairs, dtype=number) if edge_ids else np.ones(pairs, np.int8)
    coo = sp.coo_array((data, (high, low)), shape=(n, n))
    coo.has_canonical_format = True
    lower = coo.tocsr()
    del coo, data
    graph.let_go()
    ends_below, ends_above = lower.indptr.astype(np.int64), np.searchsorted(low, np.arange(n + 1, dtype=low.dtype))
    indptr = ends_below + ends_above
    indices, ids = np.empty(2 * pairs, np.int32), np.ones(2 * pairs, lower.data.dtype)
    for begin, end, place in _places(ends_below, indptr[:-1]):
        indices[place] = lower.indices[begin:end]
        if edge_ids:
            ids[place] = lower.data[begin:end]
    below = np.diff(ends_below)
    del lower
    for begin, end, place in _places(ends_above, indptr[:-1] + below):
        indices[place] = high[begin:end]
        if edge_ids:
            ids[place] = np.arange(pairs + begin, pairs + end)
    graph.let_go()
    return sp.csr_array((ids, indices, indptr.astype(number)), shape=(n, n))


def _places(indptr: np.ndarray, first: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Where the entries of rows go, a piece of them at a time: those of row v to ``first[v]`` and on."""
    for begin in range(0, total := int(indptr[-1]), PIECE):
        end = min(begin + PIECE, total)
        row, last = np.searchsorted(indptr, [begin, end - 1], side="right") - 1
        count = np.diff(indptr[row : last + 2].clip(begin, end))
        shift = first[row : last + 1] - indptr[row : last + 1]
        yield begin, end, np.arange(begin, end) + np.repeat(shift, count)


def _numbered_anew(matrix: sp.csr_array, new_id: np.ndarray) -> sp.csr_array:
    """Rows and columns under new numbers, a block of rows at a time; the order within a row stays."""
    old_id = np.argsort(new_id)
    indptr = offsets(np.diff(matrix.indptr)[old_id]).astype(matrix.indptr.dtype)
    ones = matrix.data.dtype == np.int8
    indices, data, at = np.empty_like(matrix.indices), matrix.data if ones else np.empty_like(matrix.data), 0
    for nodes in blocks(matrix, old_id):
        rows = matrix[nodes]
        indices[at : at + rows.nnz] = new_id[rows.indices]
        if not ones:
            data[at : at + rows.nnz] = rows.data
        at += rows.nnz
    return sp.csr_array((data, indices, indptr), shape=matrix.shape)


def undirected(graph: dgl.DGLGraph | Pairs) -> sp.csr_array:
    """Forget the directions, and self loops, which no cut can cut: each link is there from both of its ends.

    A graph that has every edge both ways, as most data sets have, needs no second copy: its entries are int8, and one
    neighbour may be there several times. Of other graphs, and of contracted ones, entries are added up to int32.
    """
    matrix = in_edges(graph, edge_ids=False)
    if isinstance(graph, Pairs):  # each is there both ways, and no loop is
        return matrix
    drop_loops(matrix)
    if is_symmetric(graph):
        return matrix
    matrix.data = matrix.data.astype(np.int32)  # ``matrix.astype`` would add up and sort
    return matrix + matrix.T.tocsr()


def drop_loops(matrix: sp.csr_array, first: int = 0) -> None:
    """Remove the entries of a block of rows that lie on the diagonal; row 0 of the block is that of node ``first``."""
    row = np.repeat(np.arange(first, first + len(matrix.indptr) - 1, dtype=np.int32), np.diff(matrix.indptr))
    matrix.data[matrix.indices == row] = 0
    matrix.eliminate_zeros()


def is_symmetric(graph: dgl.DGLGraph | Pairs) -> bool:
    """Whether every edge is there both ways: each node draws a number and compares what comes in with what goes out.

    Sums of whole numbers below 2**20 are exact in float64. Two different sets of neighbours agree in a sum with a
    probability of one in a million per node, and one node that differs is enough.
    """
    if isinstance(graph, Pairs):
        return True
    src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
    n = graph.num_nodes()
    number = np.random.default_rng(0).integers(1, 2**20, n).astype(np.float64)
    balance = np.zeros(n)
    for at in range(0, len(src), 8 * BLOCK):
        one, other = src[at : at + 8 * BLOCK], dst[at : at + 8 * BLOCK]
        balance += np.bincount(other, weights=number[one], minlength=n)
        balance -= np.bincount(one, weights=number[other], minlength=n)
    return not balance.any()


def cut_weight(matrix: sp.csr_array, part_of: np.ndarray) -> int:
    """Weight of all links between different parts, each counted from both ends."""
    total = 0
    for nodes in blocks(matrix, np.arange(len(part_of))):
        rows = matrix[nodes]
        cut = part_of[rows.indices] != np.repeat(part_of[nodes], np.diff(rows.indptr))
        total += int(rows.data[cut].sum(dtype=np.int64))
    return total
