"""Which part each node goes to, where DGL does not decide it: ``multilevel``, ``streaming``, ``random``.

``multilevel`` cuts almost as METIS does, in a fraction of the memory: coarsen, cut the small graph, refine on the way
back.

    graph (2,449,029 nodes) ---cluster, contract---> 40,000 ---> 2,000 ---> 800 nodes
                                                                             |  grow parts, several times; keep the best
    parts  <---project, rebalance, sweep--- 40,000 <--- 2,000 <--- 800 -------

METIS coarsens by joining two nodes at a time: it halves the graph at each level and keeps all levels, with 64-bit
ids, 16 GB for a graph of the size of ogbn-products. Clusters shrink a graph whose nodes form communities sixtyfold in
one step, so the levels below the first cost next to nothing and the memory is that of the graph itself.

``streaming`` is the cheapest cut that looks at the links at all: nodes come by one after the other, and each goes to
the part that holds most of its neighbours so far, times the share of the part that is still empty (linear deterministic
greedy: Stanton and Kliot 2012, "Streaming Graph Partitioning for Large Distributed Graphs"). The stream is repeated: in
later passes every neighbour has a place, and the cut gets much better (Nishimura and Ugander 2013, "Restreaming Graph
Partitioning"). All it remembers is the part of each node, so it would also work on a graph that is read from a disk;
the price is a larger cut than ``multilevel`` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tutorial_lib.compat.generators import seed_dgl
from tutorial_lib.errors import InputError
from tutorial_lib.partition.adjacency import blocks, cut_weight, undirected
from tutorial_lib.partition.clustering import cluster, contract
from tutorial_lib.partition.cut import Cut, climb, fits, loads, masses, rebalance, sweep

if TYPE_CHECKING:
    import dgl

    from tutorial_lib.data.pairs import Pairs

CLUSTERS_PER_PART = 40  # the largest cluster is this fraction of a part, so that the small graph can be balanced
SMALL, SMALL_PER_PART = 1000, 200  # nodes of a graph that is cut directly
STALLED = 0.95  # coarsening that keeps more of the nodes than this is given up
STUCK = 2  # a graph that stays larger than that by this factor (a star does) is not cut one node at a time
CLUSTER_ROUNDS, SWEEP_ROUNDS, CLIMB_PASSES = 3, 5, 10
CLIMB_NODES = 6000  # up to here one move at a time is quick enough
TRIALS = 16
STREAM_BLOCKS, STREAM_PASSES = 200, 10  # nodes of one block do not see each other

Say = Callable[[str], None]


def assign(
    graph: dgl.DGLGraph | Pairs,
    parts: int,
    method: str,
    *,
    train_mask: np.ndarray | None = None,
    seed: int = 0,
    progress: Say = lambda _text: None,
) -> np.ndarray:
    """The part of each node: int64 (N,), 0 to parts - 1; equal arguments give equal parts.

    Args:
        method: ``multilevel``, ``streaming`` or ``random``.
        train_mask: bool (N,): give each part the same number of these nodes too. ``random`` needs no help with that.

    Raises:
        InputError: a part would stay empty.
    """
    n = graph.num_nodes()
    if parts == 1:
        return np.zeros(n, np.int64)
    if method == "random":
        import dgl

        seed_dgl(seed)  # the draw of ``partition_graph``, so that the seed means the same whoever writes the parts
        part_of = dgl.random.choice(parts, n).numpy()
    else:
        progress("collecting the neighbours of each node")
        cut = {"multilevel": multilevel, "streaming": streaming}[method]
        part_of = cut(undirected(graph), masses(n, train_mask), parts, seed, progress)
    check_no_empty_part(part_of, parts, method)
    return part_of.astype(np.int64, copy=False)


def check_no_empty_part(part_of: np.ndarray, parts: int, method: str) -> None:
    """Raise an InputError if a part has no node: DGL's servers cannot serve it."""
    empty = np.flatnonzero(np.bincount(part_of, minlength=parts) == 0)
    if len(empty):
        raise cannot_cut(len(part_of), parts, method, f"part {empty[0]} has no node")


def cannot_cut(n: int, parts: int, method: str, reason: str) -> InputError:
    """The error of a method that cannot fill the parts."""
    remedy = "Try fewer parts." if method == "random" else "Try fewer parts, or --method random."
    return InputError(f"{method} could not cut {n} nodes into {parts} parts: {reason}", remedy)


def multilevel(graph: sp.csr_array, mass: np.ndarray, parts: int, seed: int, progress: Say) -> np.ndarray:
    """Assign every node to a part: int32 (N,); the same seed gives the same parts.

    Args:
        mass: int64 (N, C), what is to be balanced, see ``cut``.
    """
    rng = np.random.default_rng(seed)
    small = max(SMALL, SMALL_PER_PART * parts)
    levels = []  # graph, mass of its nodes, and their cluster: the node one level up
    total = np.maximum(1, mass.sum(axis=0))
    while len(mass) > small:
        # One number for all that is balanced. A training node is large where they are few.
        size, limit = (mass / total).sum(axis=1), mass.shape[1] / (CLUSTERS_PER_PART * parts)
        label = cluster(graph, size, limit, CLUSTER_ROUNDS, rng, progress)
        count = int(label.max()) + 1
        if count > STALLED * len(mass):
            break
        levels.append((graph, mass, label))
        progress(f"making {count:,} clusters the nodes of a smaller graph")
        graph, mass = contract(graph, label), loads(mass, label, count)
    progress(f"cutting a graph of {len(mass):,} nodes and {graph.nnz:,} links")
    if len(mass) > STUCK * small:
        part_of = streaming(graph, mass, parts, seed, progress)
        sweep(Cut(graph, mass, part_of, parts), SWEEP_ROUNDS, rng)
    else:
        part_of = _best_of_trials(graph, mass, parts, rng)
    for finer, finer_mass, label in reversed(levels):
        part_of = part_of[label]
        progress(f"refining {len(label):,} nodes, {cut_weight(finer, part_of):,} links cut so far")
        cut = Cut(finer, finer_mass, part_of, parts)
        rebalance(cut)
        sweep(cut, SWEEP_ROUNDS, rng)
        if len(label) <= CLIMB_NODES and finer.dtype == np.int32:  # added up, so each neighbour is there once
            climb(cut, CLIMB_PASSES)
    return part_of


def _best_of_trials(graph: sp.csr_array, mass: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Cut the smallest graph several times from different seeds: the smallest cut, balance first."""
    graph = contract(graph, np.arange(len(mass), dtype=np.int32))  # one that was small from the start is not yet
    best, least = np.empty(0, np.int32), np.inf
    for _ in range(TRIALS):
        cut = Cut(graph, mass, np.full(len(mass), parts, np.int32), parts)
        grow(cut, rng)
        rebalance(cut)
        climb(cut, CLIMB_PASSES)
        too_full = max(0.0, float((cut.load / cut.limit).max()) - 1)
        # What is too full is moved out later, one level down, at a price: about five times its share of the cut.
        cost = cut_weight(graph, cut.part_of) * (1 + 5 * too_full)
        if cost < least:
            best, least = cut.part_of, cost
    return best


def grow(cut: Cut, rng: np.random.Generator) -> None:
    """Let the parts grow side by side in a small contracted graph, of which no node has a place yet.

    The emptiest part takes the node that hangs on it most, as a share of the node's links. A part that has no
    neighbour left to take starts again from a random node.
    """
    graph, n = cut.graph, len(cut.part_of)
    share = np.maximum(1, cut.mass.sum(axis=0)) / cut.parts
    degree = np.maximum(1, graph.sum(axis=1))
    linked = np.zeros((n, cut.parts))
    for _ in range(n):
        part = int((cut.load / share).max(axis=1).argmin())
        free = cut.part_of == cut.parts
        possible = free & (cut.load[part] + cut.mass <= cut.limit).all(axis=1)
        if not possible.any():
            possible = free
        elsewhere = linked.sum(axis=1) - linked[:, part]
        score = np.where(possible, (linked[:, part] - elsewhere / 2) / degree, -np.inf)
        node = int(score.argmax())
        if linked[node, part] == 0:
            node = int(rng.choice(np.flatnonzero(possible)))
        cut.load[part] += cut.mass[node]
        cut.part_of[node] = part
        entries = slice(graph.indptr[node], graph.indptr[node + 1])
        linked[graph.indices[entries], part] += graph.data[entries]


def streaming(graph: sp.csr_array, mass: np.ndarray, parts: int, seed: int, progress: Say) -> np.ndarray:
    """Assign every node to a part: int32 (N,); arguments as of ``multilevel``."""
    rng, n = np.random.default_rng(seed), len(mass)
    cut = Cut(graph, mass, np.full(n, parts, np.int32), parts)
    for number in range(1, STREAM_PASSES + 1):
        progress(f"pass {number} of at most {STREAM_PASSES} over the stream of nodes")
        before = cut.part_of.copy()
        for nodes in blocks(graph, rng.permutation(n), STREAM_BLOCKS):
            _place(cut, nodes)
        if (cut.part_of != before).sum() < n / 100:
            break
    rebalance(cut)
    return cut.part_of


def _place(cut: Cut, nodes: np.ndarray) -> None:
    """Put each node of a block where it likes it best; those that find no room there, where there is some."""
    linked = cut.links(nodes)
    cut.take_out(nodes)
    # A node counts for what it adds: a training node fills the training share of a part, another one the rest.
    room = np.clip(1 - cut.load / cut.limit, 0, None).T[cut.mass[nodes].argmax(axis=1)]
    # The small number decides for nodes without a placed neighbour: where there is most room.
    wish = ((linked + 1e-3) * room).argmax(axis=1)
    cut.grant(nodes, wish)
    waiting = nodes[np.argsort(wish, kind="stable")]
    for node in waiting[cut.part_of[waiting] == cut.parts]:
        over = np.where(fits(cut.load, cut.mass[node], cut.limit), 0, 10)
        part = (cut.load / cut.limit + over[:, None]).max(axis=1).argmin()
        cut.load[part] += cut.mass[node]
        cut.part_of[node] = part
