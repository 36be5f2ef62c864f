"""A cut almost as METIS makes it, in a fraction of the memory: coarsen, cut the small graph, refine on the way back.

    graph (2,449,029 nodes) ---cluster, contract---> 40,000 ---> 2,000 ---> 800 nodes
                                                                             |  grow parts, several times; keep the best
    parts  <---project, rebalance, sweep--- 40,000 <--- 2,000 <--- 800 -------

METIS coarsens by joining two nodes at a time: it halves the graph at each level and keeps all levels, with 64-bit
ids, 16 GB for a graph of the size of ogbn-products. Clusters shrink a graph whose nodes form communities sixtyfold in
one step, so the levels below the first cost next to nothing and the memory is that of the graph itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutorial_lib.partition.adjacency import Adjacency, cut_weight
from tutorial_lib.partition.balance import Cut, limits, loads, rebalance
from tutorial_lib.partition.clustering import cluster, contract
from tutorial_lib.partition.refine import climb, sweep
from tutorial_lib.partition.streaming import streaming

CLUSTERS_PER_PART = 40  # the largest cluster is this fraction of a part, so that the small graph can be balanced
SMALL, SMALL_PER_PART = 1000, 200  # nodes of a graph that is cut directly
STALLED = 0.95  # coarsening that keeps more of the nodes than this is given up
STUCK = 2  # a graph that stays larger than that by this factor (a star does) is not cut one node at a time
CLUSTER_ROUNDS, SWEEP_ROUNDS, CLIMB_PASSES = 3, 5, 10
CLIMB_NODES = 6000  # up to here one move at a time is quick enough
TRIALS = 16


def multilevel(
    adjacency: Adjacency, mass: np.ndarray, parts: int, seed: int, progress: Callable[[str], None]
) -> np.ndarray:
    """Assign every node to a part: int32 (N,); the same seed gives the same parts.

    Args:
        mass: int64 (N, C), what is to be balanced, see ``balance``.
    """
    rng = np.random.default_rng(seed)
    limit = limits(mass, parts)
    levels = _coarsen(adjacency, mass, parts, rng, progress)
    smallest, small_mass, _ = levels.pop()
    progress(f"cutting a graph of {smallest.num_nodes:,} nodes and {len(smallest.neighbour):,} links")
    if smallest.num_nodes > STUCK * _small(parts):
        part_of = streaming(smallest, small_mass, parts, seed, progress)
        sweep(Cut(smallest, small_mass, part_of, parts, limit), SWEEP_ROUNDS, rng)
    else:
        part_of = _best_of_trials(smallest, small_mass, parts, limit, rng)
    for finer, finer_mass, label in reversed(levels):
        part_of = part_of[label]
        progress(f"refining {finer.num_nodes:,} nodes, {cut_weight(finer, part_of):,} links cut so far")
        cut = Cut(finer, finer_mass, part_of, parts, limit)
        rebalance(cut)
        sweep(cut, SWEEP_ROUNDS, rng)
        if finer.num_nodes <= CLIMB_NODES and finer.weight is not None:
            climb(cut, CLIMB_PASSES)
    return part_of


Level = tuple[Adjacency, np.ndarray, np.ndarray]  # graph, mass of its nodes, and their cluster: the node one level up


def _coarsen(
    adjacency: Adjacency, mass: np.ndarray, parts: int, rng: np.random.Generator, progress: Callable[[str], None]
) -> list[Level]:
    """From the whole graph to the smallest one, which has no clusters."""
    levels: list[Level] = []
    total = np.maximum(1, mass.sum(axis=0))
    # One number for all that is balanced. A training node is large where they are few.
    limit = mass.shape[1] / (CLUSTERS_PER_PART * parts)
    while adjacency.num_nodes > _small(parts):
        size = (mass / total).sum(axis=1)
        label = cluster(adjacency, size, limit, CLUSTER_ROUNDS, rng, progress)
        count = int(label.max()) + 1
        if count > STALLED * adjacency.num_nodes:
            break
        levels.append((adjacency, mass, label))
        progress(f"making {count:,} clusters the nodes of a smaller graph")
        adjacency, mass = contract(adjacency, label), loads(mass, label, count)
    return [*levels, (adjacency, mass, np.empty(0, np.int32))]


def _small(parts: int) -> int:
    return max(SMALL, SMALL_PER_PART * parts)


def _best_of_trials(
    adjacency: Adjacency, mass: np.ndarray, parts: int, limit: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Cut the smallest graph several times from different seeds: the smallest cut, balance first."""
    # A graph that was small from the start has no weights yet.
    adjacency = contract(adjacency, np.arange(adjacency.num_nodes, dtype=np.int32))
    tried = []
    for trial in range(TRIALS):
        cut = Cut(adjacency, mass, grow(adjacency, mass, parts, limit, rng), parts, limit)
        rebalance(cut)
        climb(cut, CLIMB_PASSES)
        too_full = max(0.0, float((cut.load / limit).max()) - 1)
        # What is too full is moved out later, one level down, at a price: about five times its share of the cut.
        tried.append((cut_weight(adjacency, cut.part_of) * (1 + 5 * too_full), trial, cut.part_of))
    return min(tried, key=lambda entry: entry[:2])[2]


def grow(adjacency: Adjacency, mass: np.ndarray, parts: int, limit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Let the parts grow side by side in a small graph: int32 (N,).

    The emptiest part takes the node that hangs on it most, as a share of the node's links. A part that has no
    neighbour left to take starts again from a random node.
    """
    n = adjacency.num_nodes
    part_of, load = np.full(n, -1, np.int32), np.zeros((parts, mass.shape[1]))
    share = np.maximum(1, mass.sum(axis=0)) / parts
    row = np.repeat(np.arange(n), np.diff(adjacency.indptr))
    degree = np.maximum(1, np.bincount(row, weights=adjacency.weight, minlength=n))
    linked = np.zeros((n, parts))
    free = np.ones(n, dtype=bool)
    for _ in range(n):
        part = int((load / share).max(axis=1).argmin())
        possible = free & (load[part] + mass <= limit).all(axis=1)
        if not possible.any():
            possible = free
        elsewhere = linked.sum(axis=1) - linked[:, part]
        score = np.where(possible, (linked[:, part] - elsewhere / 2) / degree, -np.inf)
        node = int(score.argmax())
        if linked[node, part] == 0:
            node = int(rng.choice(np.flatnonzero(possible)))
        part_of[node], free[node] = part, False
        load[part] += mass[node]
        entries = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        linked[adjacency.neighbour[entries], part] += adjacency.weight[entries]
    return part_of
