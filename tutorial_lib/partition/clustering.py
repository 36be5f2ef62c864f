"""Making a graph smaller without losing what matters for the cut: clusters, and the graph of the clusters.

Nodes that are tied closely belong in the same part, so they can be decided together. ``cluster`` finds them by label
propagation: every node takes the label that most of its links lead to, unless that cluster is full. ``contract`` then
makes each cluster one node and adds up the links between two clusters. A cut of the small graph is a cut of the large
one, of exactly the same weight.

The limit on the size is what makes this useful for cutting: without it a label would flood half the graph, and there
would be nothing left to balance (Meyerhenke, Sanders and Schulz 2014, "Partitioning Complex Networks via
Size-constrained Clustering").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from tutorial_lib.partition.adjacency import BLOCK, Adjacency, offsets

BLOCKS_PER_ROUND = 32  # a node sees the moves of all blocks before its own: the more blocks, the fewer oscillations
FEW = 0.01  # a round that moves a smaller share of the nodes is the last one
MINE, DICE = 0.5, 0.4  # less than one link: they only decide between equals, first for one's own label


def cluster(
    adjacency: Adjacency,
    size: np.ndarray,
    limit: float,
    rounds: int,
    rng: np.random.Generator,
    progress: Callable[[str], None] = lambda _text: None,
) -> np.ndarray:
    """Label every node with its cluster: int32 (N,), labels 0 to C - 1.

    Args:
        size: float64 (N,), what a node adds to the size of its cluster.
        limit: no cluster gets larger; a single node may be.
        rounds: at most so many passes over the graph.
    """
    label = np.arange(adjacency.num_nodes, dtype=np.int32)
    total = size.astype(np.float64)
    for number in range(1, rounds + 1):
        progress(f"clustering {adjacency.num_nodes:,} nodes, round {number} of at most {rounds}")
        moved = 0
        for nodes in adjacency.blocks(rng.permutation(adjacency.num_nodes), BLOCKS_PER_ROUND):
            wish = _favourite(adjacency, nodes, label, size, total, limit, rng)
            moved += _move(nodes, wish, label, size, total, limit)
        if moved < FEW * adjacency.num_nodes:
            break
    _pack_lonely(adjacency, label, size, limit)
    return np.unique(label, return_inverse=True)[1].astype(np.int32)


def _favourite(
    adjacency: Adjacency,
    nodes: np.ndarray,
    label: np.ndarray,
    size: np.ndarray,
    total: np.ndarray,
    limit: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """The label with the most links among those that still have room, for each node of a block."""
    votes = _sum_by_label(*adjacency.rows(nodes), label, len(label))
    count = np.diff(votes.indptr)
    row = np.repeat(np.arange(len(nodes)), count)
    mine = votes.indices == label[nodes][row]
    allowed = mine | (total[votes.indices] + size[nodes][row] <= limit)
    score = np.where(allowed, votes.data + MINE * mine + DICE * rng.random(len(row)), -1.0)
    some = count > 0
    best = np.maximum.reduceat(score, votes.indptr[:-1][some]) if some.any() else score
    chosen = allowed & (score == np.repeat(best, count[some]))
    wish = label[nodes]
    wish[row[chosen]] = votes.indices[chosen]
    return wish


def _move(
    nodes: np.ndarray, wish: np.ndarray, label: np.ndarray, size: np.ndarray, total: np.ndarray, limit: float
) -> int:
    """Grant the wishes of a block, label by label until it is full; the number of nodes that moved."""
    go = np.flatnonzero(wish != label[nodes])
    go = go[np.argsort(wish[go], kind="stable")]
    target, added = wish[go], size[nodes[go]]
    queue = np.cumsum(added)
    first = np.flatnonzero(np.diff(target, prepend=-1))  # of the nodes that want the same label
    queue -= np.repeat((queue - added)[first], np.diff(first, append=len(target)))
    admitted = total[target] + queue <= limit
    movers, target = nodes[go[admitted]], target[admitted]
    np.subtract.at(total, label[movers], size[movers])
    np.add.at(total, target, size[movers])
    label[movers] = target
    return len(movers)


def _pack_lonely(adjacency: Adjacency, label: np.ndarray, size: np.ndarray, limit: float) -> None:
    """Put nodes without a link together: nobody would take them, and the graph would never get small."""
    lonely = np.flatnonzero(np.diff(adjacency.indptr) == 0)
    basket = np.cumsum(size[lonely]) // (limit / 4)
    _, first, number = np.unique(basket, return_index=True, return_inverse=True)
    label[lonely] = lonely[first][number]


def contract(adjacency: Adjacency, label: np.ndarray) -> Adjacency:
    """The graph of the clusters: one node per label, links between two clusters added up, none inside.

    Works through the clusters in blocks. The entries of a cluster's members, one after the other, are the entries of
    the cluster; only the ends have to be renamed and the duplicates added up.
    """
    count = int(label.max()) + 1
    order = np.argsort(label, kind="stable")
    first_member = offsets(np.bincount(label, minlength=count))
    entries = offsets(np.diff(adjacency.indptr)[order])[first_member]
    cuts = np.searchsorted(entries, np.arange(0, entries[-1], 2 * BLOCK)[1:])
    degrees, neighbours, weights = [], [], []
    for begin, end in _stretches(np.unique(np.concatenate([[0], cuts, [count]]))):
        members = first_member[begin : end + 1]
        indptr, neighbour, weight = adjacency.rows(order[members[0] : members[-1]])
        merged = _sum_by_label(indptr[members - members[0]], neighbour, weight, label, count)
        row = np.repeat(np.arange(end - begin), np.diff(merged.indptr))
        outside = merged.indices != row + begin
        degrees.append(np.bincount(row[outside], minlength=end - begin))
        neighbours.append(merged.indices[outside])
        weights.append(merged.data[outside])
    return Adjacency(offsets(np.concatenate(degrees)), np.concatenate(neighbours), np.concatenate(weights))


def _stretches(cuts: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def _sum_by_label(
    indptr: np.ndarray, neighbour: np.ndarray, weight: np.ndarray | None, label: np.ndarray, width: int
) -> sp.csr_array:
    """Rename the ends of links to their labels and add up equal ones: (rows x nodes) times (nodes x labels)."""
    n = len(label)
    if weight is None:
        weight = np.ones(len(neighbour), np.int32)
    rows = sp.csr_array((weight, neighbour, indptr.astype(np.int32)), shape=(len(indptr) - 1, n))
    one_hot = sp.csr_array((np.ones(n, np.int32), label, np.arange(n + 1, dtype=np.int32)), shape=(n, width))
    return rows @ one_hot
