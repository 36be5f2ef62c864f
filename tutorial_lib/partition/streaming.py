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

from tutorial_lib.partition.adjacency import Adjacency, links
from tutorial_lib.partition.balance import fits, limits, rebalance

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
    limit = limits(mass, parts)
    load = np.zeros((parts, mass.shape[1]), np.int64)
    part_of = np.full(n, parts, np.int32)  # one part too many: the nodes that have no place yet
    for number in range(1, PASSES + 1):
        progress(f"pass {number} of at most {PASSES} over the stream of nodes")
        moved = 0
        for nodes in adjacency.blocks(rng.permutation(n), BLOCKS):
            moved += _place(adjacency, nodes, mass, part_of, load, limit)
        if moved < n / 100:
            break
    rebalance(adjacency, mass, part_of, parts, limit)
    return part_of


def _place(
    adjacency: Adjacency,
    nodes: np.ndarray,
    mass: np.ndarray,
    part_of: np.ndarray,
    load: np.ndarray,
    limit: np.ndarray,
) -> int:
    """Put each node of a block where it likes it best; the number of nodes that changed their place."""
    parts, old, added = len(load), part_of[nodes], mass[nodes]
    placed = old < parts
    np.subtract.at(load, old[placed], added[placed])
    linked = links(adjacency, nodes, part_of, parts + 1)[:, :parts]
    # A node counts for what it adds: a training node fills the training share of a part, another one the rest.
    empty = np.clip(1 - load / limit, 0, None)
    kind = added.argmax(axis=1)
    room = empty.T[kind]
    # The small number decides for nodes without a placed neighbour: where there is most room.
    wish = ((linked + 1e-3) * room).argmax(axis=1)
    part_of[nodes] = _admit(wish, added, load, limit)
    return int((part_of[nodes] != old).sum())


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
