"""A graph in parts: how full they are, and making the cut better within the limits of balance.

A node has one number per thing that must be balanced: its ``mass``, int64 (N, C). With ``balance_train`` there are
two, as in DGL's call of METIS: training nodes and other nodes. A part may hold 3 % more of each than its share, which
is what METIS allows too.
No function takes the last node of a part.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from tutorial_lib.partition.adjacency import blocks

SLACK = 0.03
BLOCKS_PER_ROUND = 32
LITTLE = 1e-4  # a round that improves the cut by less, as a share of all links, is the last one


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
        graph: of ``undirected``, N nodes.
        mass: int64 (N, C).
        part_of: int32 (N,), the part of each node; ``parts`` for a node that has no place yet.
        limit: float64 (C,), the most that a part may hold.
        load: int64 (parts, C), mass in each part.
    """

    def __init__(self, graph: sp.csr_array, mass: np.ndarray, part_of: np.ndarray, parts: int) -> None:
        self.graph, self.mass, self.part_of, self.parts = graph, mass, part_of, parts
        self.limit = limits(mass, parts)
        self.load = loads(mass, part_of, parts)[:parts]

    def links(self, nodes: np.ndarray) -> np.ndarray:
        """Weight of the links from each given node to each part: float64 (len(nodes), parts)."""
        rows, wide = self.graph[nodes], self.parts + 1  # the last column: neighbours without a place
        at = np.repeat(np.arange(len(nodes)) * wide, np.diff(rows.indptr)) + self.part_of[rows.indices]
        weight = np.bincount(at, weights=rows.data, minlength=len(nodes) * wide).reshape(len(nodes), wide)
        return weight.astype(np.float64, copy=False)[:, :-1]  # of no entries, bincount makes integers

    def take_out(self, nodes: np.ndarray) -> None:
        """Leave nodes without a place; they may have none."""
        placed = nodes[self.part_of[nodes] < self.parts]
        np.subtract.at(self.load, self.part_of[placed], self.mass[placed])
        self.part_of[nodes] = self.parts

    def grant(self, nodes: np.ndarray, wish: np.ndarray) -> int:
        """Move nodes, which come in this order, to the parts that they want, while there is room; how many moved."""
        moved = 0
        for part in range(self.parts):
            wanting = nodes[wish == part]
            admitted = wanting[fits(self.load[part], np.cumsum(self.mass[wanting], axis=0), self.limit)]
            self.take_out(admitted)
            self.load[part] += self.mass[admitted].sum(axis=0)
            self.part_of[admitted] = part
            moved += len(admitted)
        return moved

    def move(self, node: int, part: int) -> None:
        """Put one node, which has a place, into a part, whether there is room or not."""
        self.load[self.part_of[node]] -= self.mass[node]
        self.load[part] += self.mass[node]
        self.part_of[node] = part


def rebalance(cut: Cut) -> None:
    """Move nodes out of parts that hold too much, where it costs the cut least.

    On a small graph with heavy nodes it may not succeed; the next finer graph has lighter ones. No part gets empty: a
    node goes only from more than the limit, and only where it fits, so it weighs less than what was there.
    """
    stuck = np.zeros(cut.load.shape, dtype=bool)
    while True:
        excess = np.where(stuck, -np.inf, cut.load / cut.limit - 1)
        part, what = map(int, np.unravel_index(excess.argmax(), cut.load.shape))
        if excess[part, what] <= 0:
            return
        stuck[part, what] = not _relieve(cut, part, what)


def _relieve(cut: Cut, part: int, what: int) -> int:
    """Move mass number ``what`` from a part to the others until the limit is met; the number of nodes moved."""
    nodes = np.flatnonzero((cut.part_of == part) & (cut.mass[:, what] > 0))
    # Of moving each node to each part: what it adds to the cut, inf where it is not possible.
    costs = [np.empty((0, cut.parts))]
    for block in blocks(cut.graph, nodes):
        linked = cut.links(block)
        costs.append(linked[:, [part]] - linked)
        costs[-1][~fits(cut.load, cut.mass[block][:, None], cut.limit)] = np.inf
        costs[-1][:, part] = np.inf
    cost = np.concatenate(costs)
    least, added = cost.min(axis=1), cut.mass[nodes, what]
    order = np.argsort(least / added, kind="stable")
    order = order[np.isfinite(least[order])]
    gone_before = np.cumsum(added[order]) - added[order]
    order = order[gone_before < cut.load[part, what] - cut.limit[what]]
    return cut.grant(nodes[order], cost[order].argmin(axis=1))


def sweep(cut: Cut, rounds: int, rng: np.random.Generator) -> None:
    """Move nodes, a block at a time, to the part that most of their links lead to, if it has room.

    For graphs of any size; stops in the first valley.
    """
    enough = LITTLE * cut.graph.data.sum(dtype=np.int64)
    for _ in range(rounds):
        order = rng.permutation(len(cut.part_of))
        if sum(_improve(cut, nodes) for nodes in blocks(cut.graph, order, BLOCKS_PER_ROUND)) < enough:
            return


def _improve(cut: Cut, nodes: np.ndarray) -> float:
    """Grant the moves of a block, the most useful first, while there is room; what they were worth in links."""
    linked, row, own = cut.links(nodes), np.arange(len(nodes)), cut.part_of[nodes]
    here = linked[row, own]
    linked[row, own] = -1
    target = linked.argmax(axis=1)
    gain = linked[row, target] - here
    order = np.flatnonzero(gain > 0)
    order = order[np.argsort(-gain[order], kind="stable")]
    leaving = loads(cut.mass[nodes[order]], own[order], cut.parts).sum(axis=1)
    for part in np.flatnonzero((leaving > 0) & (leaving == cut.load.sum(axis=1))):  # it would be empty
        order = np.delete(order, np.flatnonzero(own[order] == part)[-1])
    cut.grant(nodes[order], target[order])
    return float(gain[cut.part_of[nodes] != own].sum())


def climb(cut: Cut, passes: int) -> None:
    """Improve a small contracted graph, never to a worse cut, never to a fuller part; gets out of a valley.

    One node at a time, always the best move, also when it makes the cut worse for a while; at the end, back to the best
    state seen (Fiduccia and Mattheyses 1982). A pass moves each node at most once and ends after a stretch of moves
    without a new best state.
    """
    for _ in range(passes):
        moves, useful = _climb_once(cut)
        for node, origin in reversed(moves[useful:]):
            cut.move(node, origin)
        if useful == 0:
            break


def _climb_once(cut: Cut) -> tuple[list[tuple[int, int]], int]:
    """Move nodes; returns the moves as (node, part it left) and after how many of them the cut was best."""
    graph, mass, part_of, load = cut.graph, cut.mass, cut.part_of, cut.load
    n = len(part_of)
    linked = cut.links(np.arange(n))
    gain = _gain(linked, part_of)  # of every node to every part; -inf: not to be considered (again) in this pass
    choices = gain.reshape(-1)
    moved = np.zeros(n, dtype=bool)
    moves: list[tuple[int, int]] = []
    now = best = 0.0
    useful = 0
    while len(moves) - useful < max(100, n // 20):
        choice = int(choices.argmax())
        if choices[choice] == -np.inf:
            break
        node, to = divmod(choice, cut.parts)
        origin = int(part_of[node])
        if not fits(load[to], mass[node], cut.limit) or (load[origin] == mass[node]).all():
            choices[choice] = -np.inf
            continue
        now += choices[choice]
        moved[node], gain[node] = True, -np.inf
        cut.move(node, to)
        moves.append((node, origin))
        if now > best:
            best, useful = now, len(moves)
        entries = slice(graph.indptr[node], graph.indptr[node + 1])
        neighbour, weight = graph.indices[entries], graph.data[entries]  # of a contracted graph: each appears once
        linked[neighbour, origin] -= weight
        linked[neighbour, to] += weight
        waiting = neighbour[~moved[neighbour]]
        gain[waiting] = _gain(linked[waiting], part_of[waiting])
    return moves, useful


def _gain(linked: np.ndarray, own: np.ndarray) -> np.ndarray:
    """How much smaller the cut gets by moving a node to each part: float64 (N, parts), -inf for its own part."""
    row = np.arange(len(own))
    gain = linked - linked[row, own][:, None]
    gain[row, own] = -np.inf
    return gain
