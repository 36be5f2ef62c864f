"""Which part each node goes to, where DGL does not decide it: one function, three methods.

multilevel   ours, in a fraction of the memory: coarsen, cut, refine
streaming    ours, quicker and simpler: put each node where its neighbours are
random       for comparison
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tutorial_lib.errors import InputError
from tutorial_lib.partition.adjacency import undirected
from tutorial_lib.partition.balance import masses
from tutorial_lib.partition.multilevel import multilevel
from tutorial_lib.partition.streaming import streaming

if TYPE_CHECKING:
    import dgl

OURS = {"multilevel": multilevel, "streaming": streaming}


def assign(
    graph: dgl.DGLGraph,
    parts: int,
    method: str,
    *,
    train_mask: np.ndarray | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> np.ndarray:
    """The part of each node: int64 (N,), values 0 to parts - 1; equal arguments give equal parts.

    Args:
        method: ``multilevel``, ``streaming`` or ``random``.
        train_mask: bool (N,): give each part the same number of these nodes too. ``random`` needs no help with that.

    Raises:
        InputError: unknown method, or a part would stay empty.
    """
    n = graph.num_nodes()
    if parts == 1:
        return np.zeros(n, np.int64)
    if method == "random":
        part_of = _random(n, parts, seed)
    elif method in OURS:
        progress("collecting the neighbours of each node")
        adjacency = undirected(graph)
        part_of = OURS[method](adjacency, masses(n, train_mask), parts, seed, progress)
    else:
        raise InputError(f"unknown partition method {method!r}", f"Known: {', '.join(OURS)}, random.")
    check_no_empty_part(part_of, parts, method)
    return part_of.astype(np.int64, copy=False)


def check_no_empty_part(part_of: np.ndarray, parts: int, method: str) -> None:
    """Raise an InputError if a part has no node: DGL's servers cannot serve it."""
    empty = np.flatnonzero(np.bincount(part_of, minlength=parts) == 0)
    if len(empty):
        raise InputError(
            f"{method} could not cut {len(part_of)} nodes into {parts} parts: part {empty[0]} has no node",
            remedy_for(method),
        )


def remedy_for(method: str) -> str:
    """What to do when a method cannot fill the parts."""
    return "Try fewer parts." if method == "random" else "Try fewer parts, or --method random."


def _random(n: int, parts: int, seed: int) -> np.ndarray:
    """The draw of ``partition_graph``, so that the seed means the same whoever writes the parts."""
    import dgl

    dgl.seed(seed)
    return dgl.random.choice(parts, n).numpy()
