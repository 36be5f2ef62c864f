"""The graph as plain arrays: the neighbours of each node, side by side, with 32-bit ids.

DGL holds an edge as two 64-bit ids and makes further copies to look nodes up. Everything in this package that has to
look at a whole graph does it over these arrays instead, a block of nodes at a time: temporary arrays then have the
size of a block, whatever the size of the graph.

    in_edges      DGLGraph -> indptr, source, edge: who sends to node v, and through which edge
    undirected    DGLGraph -> Adjacency: the same without directions, for cutting
    links         how strongly each node of a block hangs on each part
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    import dgl

BLOCK = 1 << 21  # links that are looked at together; about 100 bytes of temporary arrays for each


@dataclass(frozen=True)
class Adjacency:
    """An undirected graph of N nodes; each link is stored with both of its ends, so there are M entries.

    Attributes:
        indptr: int64 (N + 1,); the entries of node v are ``indptr[v]`` up to ``indptr[v + 1]``.
        neighbour: int32 (M,), the other end. One neighbour may appear several times.
        weight: int32 (M,), how many edges of the original graph an entry stands for; None: one each.
    """

    indptr: np.ndarray
    neighbour: np.ndarray
    weight: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    def rows(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Copy the entries of some nodes: (indptr, neighbour, weight) with one row per given node."""
        begin = self.indptr[nodes]
        degree = self.indptr[nodes + 1] - begin
        indptr = offsets(degree)
        at = np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], degree)
        return indptr, self.neighbour[at], None if self.weight is None else self.weight[at]

    def blocks(self, order: np.ndarray, least: int = 1) -> list[np.ndarray]:
        """Cut a list of nodes into at least ``least`` blocks, none with much more than BLOCK entries."""
        entries = np.cumsum(self.indptr[order + 1] - self.indptr[order])
        if not len(entries):
            return []
        count = max(least, int(entries[-1]) // BLOCK + 1)
        cuts = np.searchsorted(entries, entries[-1] * np.arange(1, count) / count)
        return [block for block in np.split(order, cuts) if len(block)]


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where each of several runs begins, and the total last: int64 (len + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def in_edges(
    graph: dgl.DGLGraph, new_id: np.ndarray | None = None, *, edge_ids: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The edges in the order of their destinations: (indptr, source, edge).

    Args:
        graph: homogeneous, N nodes, E edges.
        new_id: int32 (N,): number the nodes anew at the same time; entry v is the new id of node v.
        edge_ids: False leaves ``edge`` None and saves its memory.

    Returns:
        indptr int64 (N + 1,), source int32 (E,), edge int32 (E,), the id that the edge has in ``graph``. Edges with
        the same destination keep the order of their ids. (More than 2**31 edges: 64 bits where they are needed.)
    """
    src, dst = graph.edges(order="eid")
    shape, edges = (graph.num_nodes(),) * 2, len(src)
    data = np.arange(edges, dtype=_id_type(edges)) if edge_ids else np.zeros(edges, np.int8)
    coo = sp.coo_array((data, (_narrow(dst.numpy(), new_id), _narrow(src.numpy(), new_id))), shape=shape)
    coo.has_canonical_format = True  # scipy would otherwise add up edges that join the same two nodes
    csr = coo.tocsr()
    return csr.indptr.astype(np.int64, copy=False), csr.indices, csr.data if edge_ids else None


def _narrow(ids: np.ndarray, new_id: np.ndarray | None) -> np.ndarray:
    out = np.empty(len(ids), np.int32)
    for at in range(0, len(ids), BLOCK):
        piece = ids[at : at + BLOCK]
        out[at : at + BLOCK] = piece if new_id is None else new_id[piece]
    return out


def _id_type(count: int) -> type:
    return np.int32 if count < 2**31 else np.int64


def undirected(graph: dgl.DGLGraph) -> Adjacency:
    """Forget the directions, and self loops, which no cut can cut.

    A graph that has every edge both ways, as most data sets have, needs no second copy.
    """
    indptr, source, _ = in_edges(graph, edge_ids=False)
    if _has_self_loops(graph):
        row = np.repeat(np.arange(graph.num_nodes(), dtype=np.int32), np.diff(indptr))
        kept = source != row
        indptr, source = offsets(np.bincount(row[kept], minlength=graph.num_nodes())), source[kept]
    if is_symmetric(graph):
        return Adjacency(indptr, source)
    one_way = sp.csr_array((np.ones(len(source), np.int32), source, indptr), shape=(len(indptr) - 1,) * 2)
    both = one_way + one_way.T.tocsr()
    return Adjacency(both.indptr.astype(np.int64, copy=False), both.indices.astype(np.int32, copy=False), both.data)


def _has_self_loops(graph: dgl.DGLGraph) -> bool:
    src, dst = graph.edges(order="eid")
    return any(bool((one == other).any()) for one, other in zip(src.split(BLOCK), dst.split(BLOCK), strict=True))


def is_symmetric(graph: dgl.DGLGraph) -> bool:
    """Whether every edge is there both ways: each node draws a number and compares what comes in with what goes out.

    Sums of whole numbers below 2**20 are exact in float64. Two different sets of neighbours agree in a sum with a
    probability of one in a million per node, and one node that differs is enough.
    """
    src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
    n = graph.num_nodes()
    number = np.random.default_rng(0).integers(1, 2**20, n).astype(np.float64)
    balance = np.zeros(n)
    for at in range(0, len(src), 8 * BLOCK):
        one, other = src[at : at + 8 * BLOCK], dst[at : at + 8 * BLOCK]
        balance += np.bincount(other, weights=number[one], minlength=n)
        balance -= np.bincount(one, weights=number[other], minlength=n)
    return not balance.any()


def links(adjacency: Adjacency, nodes: np.ndarray, part_of: np.ndarray, parts: int) -> np.ndarray:
    """Weight of the links from each given node to each part: float64 (len(nodes), parts)."""
    indptr, neighbour, weight = adjacency.rows(nodes)
    row = np.repeat(np.arange(len(nodes)) * parts, np.diff(indptr))
    return (
        np.bincount(row + part_of[neighbour], weights=weight, minlength=len(nodes) * parts)
        .reshape(len(nodes), parts)
        .astype(np.float64)
    )


def cut_weight(adjacency: Adjacency, part_of: np.ndarray) -> int:
    """Weight of all links between different parts, each counted from both ends."""
    total = 0
    for nodes in adjacency.blocks(np.arange(adjacency.num_nodes)):
        indptr, neighbour, weight = adjacency.rows(nodes)
        cut = part_of[neighbour] != np.repeat(part_of[nodes], np.diff(indptr))
        total += int(cut.sum() if weight is None else weight[cut].sum(dtype=np.int64))
    return total
