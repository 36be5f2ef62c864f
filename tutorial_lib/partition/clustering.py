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
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from tutorial_lib.partition.adjacency import BLOCK, blocks, drop_loops, offsets

BLOCKS_PER_ROUND = 32  # a node sees the moves of all blocks before its own: the more blocks, the fewer oscillations
FEW = 0.01  # a round that moves a smaller share of the nodes is the last one
MINE, DICE = 0.5, 0.4  # less than one link: they only decide between equals, first for one's own label


def cluster(
    graph: sp.csr_array,
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
    n = len(size)
    label, total = np.arange(n, dtype=np.int32), size.astype(np.float64)
    for number in range(1, rounds + 1):
        progress(f"clustering {n:,} nodes, round {number} of at most {rounds}")
        moved = 0
        for nodes in blocks(graph, rng.permutation(n), BLOCKS_PER_ROUND):
            votes = graph[nodes] @ _membership(label, n)
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
            moved += _grant(nodes, wish, label, size, total, limit)
        if moved < FEW * n:
            break
    # Nodes without a link are packed together: nobody would take them, and the graph would never get small.
    lonely = np.flatnonzero(np.diff(graph.indptr) == 0)
    _, first, basket = np.unique(np.cumsum(size[lonely]) // (limit / 4), return_index=True, return_inverse=True)
    label[lonely] = lonely[first][basket]
    return np.unique(label, return_inverse=True)[1].astype(np.int32)


def _membership(label: np.ndarray, count: int) -> sp.csr_array:
    """(N, count): row v has a one in the column of node v's label."""
    n = len(label)
    return sp.csr_array((np.ones(n, np.int32), label, np.arange(n + 1, dtype=np.int32)), shape=(n, count))


def _grant(
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


def contract(graph: sp.csr_array, label: np.ndarray) -> sp.csr_array:
    """The graph of the clusters: one node per label, links between two clusters added up, none inside.

    It is PᵀAP for the membership P, a block of clusters at a time. The rows of a cluster's members, one after the
    other, are the row of the cluster; so only the ends have to be renamed and the duplicates added up.
    """
    count = int(label.max()) + 1
    order = np.argsort(label, kind="stable")
    first = offsets(np.bincount(label, minlength=count))
    entries = offsets(np.diff(graph.indptr)[order])[first]
    cuts = np.searchsorted(entries, np.arange(0, entries[-1], 2 * BLOCK)[1:])
    cuts = np.unique(np.concatenate([[0], cuts, [count]])).tolist()
    done = []
    for begin, end in pairwise(cuts):
        rows = graph[order[first[begin] : first[end]]]
        ends = rows.indptr[first[begin : end + 1] - first[begin]]
        shape = (end - begin, len(label))
        done.append(sp.csr_array((rows.data, rows.indices, ends), shape=shape) @ _membership(label, count))
        drop_loops(done[-1], begin)
    return sp.vstack(done, format="csr")
