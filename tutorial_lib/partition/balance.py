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


def rebalance(adjacency: Adjacency, mass: np.ndarray, part_of: np.ndarray, parts: int, limit: np.ndarray) -> None:
    """Move nodes out of parts that hold too much, where it costs the cut least; ``part_of`` is changed in place.

    On a small graph with heavy nodes it may not succeed; the next finer graph has lighter ones. No part gets empty: a
    node goes only from more than the limit, and only where it fits, so it weighs less than what was there.
    """
    load = loads(mass, part_of, parts)
    stuck = np.zeros(load.shape, dtype=bool)
    while True:
        excess = np.where(stuck, -np.inf, load / limit - 1)
        part, what = np.unravel_index(excess.argmax(), load.shape)
        if excess[part, what] <= 0:
            return
        stuck[part, what] = not _relieve(adjacency, mass, part_of, load, limit, part, what)


def _relieve(
    adjacency: Adjacency,
    mass: np.ndarray,
    part_of: np.ndarray,
    load: np.ndarray,
    limit: np.ndarray,
    part: int,
    what: int,
) -> int:
    """Move mass number ``what`` from a part to the others until the limit is met; the number of nodes moved."""
    nodes = np.flatnonzero((part_of == part) & (mass[:, what] > 0))
    added = mass[nodes]
    cost, target = _cheapest(adjacency, nodes, added, part_of, load, limit, part)
    order = np.argsort(cost / added[:, what], kind="stable")
    order = order[np.isfinite(cost[order])]
    gone_before = np.cumsum(added[order, what]) - added[order, what]
    order = order[gone_before < load[part, what] - limit[what]]
    moved = 0
    for to in range(len(load)):
        chosen = order[target[order] == to]
        chosen = chosen[fits(load[to], np.cumsum(added[chosen], axis=0), limit)]
        load[to] += added[chosen].sum(axis=0)
        load[part] -= added[chosen].sum(axis=0)
        part_of[nodes[chosen]] = to
        moved += len(chosen)
    return moved


def _cheapest(
    adjacency: Adjacency,
    nodes: np.ndarray,
    added: np.ndarray,
    part_of: np.ndarray,
    load: np.ndarray,
    limit: np.ndarray,
    part: int,
) -> tuple[np.ndarray, np.ndarray]:
    """For nodes of one part: what the cheapest move adds to the cut (inf where none is possible), and where to."""
    cost, target = np.empty(len(nodes)), np.empty(len(nodes), np.int64)
    positions = np.arange(len(nodes))
    at = 0
    for block in adjacency.blocks(nodes):
        here = positions[at : at + len(block)]
        at += len(block)
        linked = links(adjacency, block, part_of, len(load))
        loss = linked[:, [part]] - linked
        loss[~fits(load[None], added[here][:, None], limit)] = np.inf
        loss[:, part] = np.inf
        target[here] = loss.argmin(axis=1)
        cost[here] = loss.min(axis=1)
    return cost, target
