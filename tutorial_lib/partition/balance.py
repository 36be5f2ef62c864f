"""How full the parts are, and moving nodes out of a part that is too full.

A node has one number per thing that must be balanced: its ``mass``, int64 (N, C). With ``balance_train`` there are
two, as in DGL's call of METIS: training nodes and other nodes. A part may hold 3 % more of each than its share, which
is what METIS allows too.
"""

from __future__ import annotations

import numpy as np

from tutorial_lib.partition.adjacency import Adjacency, links

SLACK = 0.03


def masses(n: int, train_mask: np.ndarray | None) -> np.ndarray:
    """What each node adds to its part: int64 (N, 1) all ones, or (N, 2) with (other, training)."""
    if train_mask is None:
        return np.ones((n, 1), np.int64)
    return np.stack([~train_mask, train_mask], axis=1).astype(np.int64)


def loads(mass: np.ndarray, part_of: np.ndarray, parts: int) -> np.ndarray:
    """Mass in each part: int64 (parts, C)."""
    columns = [np.bincount(part_of, weights=column, minlength=parts) for column in mass.T]
    return np.stack(columns, axis=1).astype(np.int64)


def limits(mass: np.ndarray, parts: int) -> np.ndarray:
    """The most that a part may hold: float64 (C,); at least the share rounded up, which few nodes make possible."""
    share = mass.sum(axis=0) / parts
    return np.maximum(np.ceil(share), np.floor(share * (1 + SLACK)))


def fits(load: np.ndarray, added: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Whether ``added`` (..., C) still fits on ``load`` (..., C); what is not added cannot be too much: bool (...)."""
    return ((load + added <= limit) | (added == 0)).all(axis=-1)


class Cut:
    """A graph in parts, and how full they are. All that improves a cut changes one of these in place.

    Attributes:
        adjacency: the graph, N nodes.
        mass: int64 (N, C).
        part_of: int32 (N,), the part of each node; ``parts`` for a node that has no place yet.
        limit: float64 (C,), the most that a part may hold.
        load: int64 (parts, C), mass in each part.
    """

    def __init__(
        self, adjacency: Adjacency, mass: np.ndarray, part_of: np.ndarray, parts: int, limit: np.ndarray
    ) -> None:
        self.adjacency, self.mass, self.part_of, self.parts, self.limit = adjacency, mass, part_of, parts, limit
        self.load = loads(mass, part_of, parts)[:parts]

    def links(self, nodes: np.ndarray) -> np.ndarray:
        """Weight of the links from each given node to each part: float64 (len(nodes), parts)."""
        return links(self.adjacency, nodes, self.part_of, self.parts + 1)[:, : self.parts]

    def admitted(self, nodes: np.ndarray, to: int) -> np.ndarray:
        """Those of the nodes, which come in this order, that fit into a part."""
        return nodes[fits(self.load[to], np.cumsum(self.mass[nodes], axis=0), self.limit)]

    def move(self, nodes: np.ndarray, to: int) -> None:
        """Put nodes, which have a place, into a part."""
        np.subtract.at(self.load, self.part_of[nodes], self.mass[nodes])
        self.load[to] += self.mass[nodes].sum(axis=0)
        self.part_of[nodes] = to


def rebalance(cut: Cut) -> None:
    """Move nodes out of parts that hold too much, where it costs the cut least.

    On a small graph with heavy nodes it may not succeed; the next finer graph has lighter ones. No part gets empty: a
    node goes only from more than the limit, and only where it fits, so it weighs less than what was there.
    """
    stuck = np.zeros(cut.load.shape, dtype=bool)
    while True:
        excess = np.where(stuck, -np.inf, cut.load / cut.limit - 1)
        part, what = np.unravel_index(excess.argmax(), cut.load.shape)
        if excess[part, what] <= 0:
            return
        stuck[part, what] = not _relieve(cut, int(part), int(what))


def _relieve(cut: Cut, part: int, what: int) -> int:
    """Move mass number ``what`` from a part to the others until the limit is met; the number of nodes moved."""
    nodes = np.flatnonzero((cut.part_of == part) & (cut.mass[:, what] > 0))
    added = cut.mass[nodes, what]
    cost, target = _cheapest(cut, nodes, part)
    order = np.argsort(cost / added, kind="stable")
    order = order[np.isfinite(cost[order])]
    gone_before = np.cumsum(added[order]) - added[order]
    order = order[gone_before < cut.load[part, what] - cut.limit[what]]
    moved = 0
    for to in range(cut.parts):
        chosen = cut.admitted(nodes[order[target[order] == to]], to)
        cut.move(chosen, to)
        moved += len(chosen)
    return moved


def _cheapest(cut: Cut, nodes: np.ndarray, part: int) -> tuple[np.ndarray, np.ndarray]:
    """For nodes of one part: what the cheapest move adds to the cut (inf where none is possible), and where to."""
    costs, targets = [np.empty(0)], [np.empty(0, np.int64)]
    for block in cut.adjacency.blocks(nodes):
        linked = cut.links(block)
        loss = linked[:, [part]] - linked
        loss[~fits(cut.load[None], cut.mass[block][:, None], cut.limit)] = np.inf
        loss[:, part] = np.inf
        costs.append(loss.min(axis=1))
        targets.append(loss.argmin(axis=1))
    return np.concatenate(costs), np.concatenate(targets)
