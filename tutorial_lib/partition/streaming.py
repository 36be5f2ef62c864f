"""The cheapest cut that looks at the links at all: nodes come by one after the other and are put where their
neighbours are.

A node goes to the part that holds most of its neighbours so far, times the share of the part that is still empty
(linear deterministic greedy: Stanton and Kliot 2012, "Streaming Graph Partitioning for Large Distributed Graphs").
The stream is repeated: in later passes every neighbour has a place, and the cut gets much better (Nishimura and
Ugander 2013, "Restreaming Graph Partitioning"). All it remembers is the part of each node, so it would also work on a
graph that is read from a disk; the price is a larger cut than ``multilevel`` finds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutorial_lib.partition.adjacency import Adjacency
from tutorial_lib.partition.balance import Cut, fits, limits, rebalance

BLOCKS = 200  # nodes of one block do not see each other
PASSES = 10


def streaming(
    adjacency: Adjacency, mass: np.ndarray, parts: int, seed: int, progress: Callable[[str], None]
) -> np.ndarray:
    """Assign every node to a part: int32 (N,); the same seed gives the same parts.

    Args:
        mass: int64 (N, C), what is to be balanced, see ``balance``.
    """
    rng = np.random.default_rng(seed)
    n = adjacency.num_nodes
    cut = Cut(adjacency, mass, np.full(n, parts, np.int32), parts, limits(mass, parts))
    for number in range(1, PASSES + 1):
        progress(f"pass {number} of at most {PASSES} over the stream of nodes")
        moved = 0
        for nodes in adjacency.blocks(rng.permutation(n), BLOCKS):
            moved += _place(cut, nodes)
        if moved < n / 100:
            break
    rebalance(cut)
    return cut.part_of


def _place(cut: Cut, nodes: np.ndarray) -> int:
    """Put each node of a block where it likes it best; the number of nodes that changed their place."""
    old, added = cut.part_of[nodes], cut.mass[nodes]
    placed = old < cut.parts
    np.subtract.at(cut.load, old[placed], added[placed])
    # A node counts for what it adds: a training node fills the training share of a part, another one the rest.
    empty = np.clip(1 - cut.load / cut.limit, 0, None)
    room = empty.T[added.argmax(axis=1)]
    # The small number decides for nodes without a placed neighbour: where there is most room.
    wish = ((cut.links(nodes) + 1e-3) * room).argmax(axis=1)
    cut.part_of[nodes] = _admit(wish, added, cut.load, cut.limit)
    return int((cut.part_of[nodes] != old).sum())


def _admit(wish: np.ndarray, added: np.ndarray, load: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Fill the parts with the nodes that want them, ``load`` with them; the others go where there is room."""
    place = wish.astype(np.int32)
    waiting = np.empty(0, np.int64)
    for part in range(len(load)):
        here = np.flatnonzero(wish == part)
        enough = fits(load[part], np.cumsum(added[here], axis=0), limit)
        waiting = np.concatenate([waiting, here[~enough]])
        load[part] += added[here[enough]].sum(axis=0)
    for node in waiting:
        place[node] = (load / limit + np.where(fits(load, added[node], limit), 0, 10)[:, None]).max(axis=1).argmin()
        load[place[node]] += added[node]
    return place
