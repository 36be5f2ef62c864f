"""Making a cut better by moving nodes between parts, within the limits of balance. Two ways:

sweep    over all nodes, a block at a time: who has more links to another part goes there, if it has room.
         For graphs of any size; stops in the first valley.
climb    one node at a time, always the best move, also when it makes the cut worse for a while; at the end, back
         to the best state seen (Fiduccia and Mattheyses 1982). Gets out of a valley; for small graphs.

Neither takes the last node of a part.
"""

from __future__ import annotations

import numpy as np

from tutorial_lib.partition.balance import Cut, fits, loads

BLOCKS_PER_ROUND = 32
LITTLE = 1e-4  # a round that improves the cut by less, as a share of all links, is the last one


def sweep(cut: Cut, rounds: int, rng: np.random.Generator) -> None:
    """Move nodes to the part that most of their links lead to."""
    adjacency = cut.adjacency
    everything = len(adjacency.neighbour) if adjacency.weight is None else adjacency.weight.sum(dtype=np.int64)
    for _ in range(rounds):
        blocks = adjacency.blocks(rng.permutation(adjacency.num_nodes), BLOCKS_PER_ROUND)
        if sum(_improve(cut, nodes) for nodes in blocks) < LITTLE * everything:
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
    order = order[_leave_one(own[order], cut.mass[nodes[order]], cut.load)]
    before = cut.part_of[nodes]
    for to in range(cut.parts):
        cut.move(cut.admitted(nodes[order[target[order] == to]], to), to)
    return float(gain[cut.part_of[nodes] != before].sum())


def _leave_one(own: np.ndarray, added: np.ndarray, load: np.ndarray) -> np.ndarray:
    """Which moves out of the parts ``own`` are granted: all but the last one of a part that would be empty, bool."""
    leaving = loads(added, own, len(load)).sum(axis=1)
    granted = np.ones(len(own), dtype=bool)
    for part in np.flatnonzero((leaving > 0) & (leaving == load.sum(axis=1))):
        granted[np.flatnonzero(own == part)[-1]] = False
    return granted


def climb(cut: Cut, passes: int) -> None:
    """Improve a small graph with weights, never to a worse cut, never to a fuller part.

    A pass moves each node at most once and ends after a stretch of moves without a new best state.
    """
    for _ in range(passes):
        moves, useful = _climb_once(cut)
        for node, origin in reversed(moves[useful:]):
            _move_one(cut, node, origin)
        if useful == 0:
            break


def _move_one(cut: Cut, node: int, to: int) -> None:
    """``Cut.move`` of one node, which is called very often."""
    cut.load[cut.part_of[node]] -= cut.mass[node]
    cut.load[to] += cut.mass[node]
    cut.part_of[node] = to


def _climb_once(cut: Cut) -> tuple[list[tuple[int, int]], int]:
    """Move nodes; returns the moves as (node, part it left) and after how many of them the cut was best."""
    adjacency, mass, part_of, load = cut.adjacency, cut.mass, cut.part_of, cut.load
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
        _move_one(cut, node, to)
        moves.append((node, origin))
        if now > best:
            best, useful = now, len(moves)
        entries = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        neighbour = adjacency.neighbour[entries]  # of a contracted graph: each appears once
        linked[neighbour, origin] -= adjacency.weight[entries]
        linked[neighbour, to] += adjacency.weight[entries]
        waiting = neighbour[~moved[neighbour]]
        gain[waiting] = _gain(linked[waiting], part_of[waiting])
    return moves, useful


def _gain(linked: np.ndarray, own: np.ndarray) -> np.ndarray:
    """How much smaller the cut gets by moving a node to each part: float64 (N, parts), -inf for its own part."""
    row = np.arange(len(own))
    gain = linked - linked[row, own][:, None]
    gain[row, own] = -np.inf
    return gain
