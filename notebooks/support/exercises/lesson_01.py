"""Checkers of lesson 1, DistGraph in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import Rows, exercise, expect


@exercise(1)
def check_outside(outside: Callable[[Tensor], Tensor]) -> None:
    """Exercise 1: ``outside(mask)``, uint8 or bool (N,), gives the ids that the mask does not select, int64."""
    for values, expected in (([0, 1, 0, 0, 1], [0, 2, 3]), ([1, 1, 1], []), ([0, 0], [0, 1])):
        for dtype in (torch.uint8, torch.bool):
            got = outside(torch.tensor(values, dtype=dtype))
            hint = "~ flips all eight bits of a uint8, and neither 254 nor 255 is zero."
            expect(f"ids outside the {dtype} mask {values}", got, torch.tensor(expected, dtype=torch.int64), hint)


DEGREE_CASES = (  # edges, number of nodes, rows at once; the last nodes of some have no edge
    ([(0, 1), (2, 1), (3, 1), (1, 0)], 5, 2),
    ([(0, 6), (1, 6), (2, 6), (6, 2), (5, 2)], 7, 3),
    ([(0, 1), (1, 2), (2, 0), (0, 2)], 6, 6),
    ([(3, 0), (2, 0), (1, 0)], 4, 10),
)


@exercise(2)
def check_write_degrees(write_degrees: Callable[[Any, Any, int], None]) -> None:
    """Exercise 2: ``write_degrees(graph, table, rows)`` writes in-degrees, at most ``rows`` of them at once."""
    import dgl

    for edges, nodes, rows in DEGREE_CASES:
        graph = dgl.graph(tuple(map(list, zip(*edges, strict=True))), num_nodes=nodes)
        table = Rows(torch.full((nodes,), -1))
        write_degrees(graph, table, rows)
        what = f"graph with {nodes} nodes, rows={rows}: the table (-1 was never written)"
        expect(what, table.values, graph.in_degrees(), "Is the last piece written, when it is a short one?")
        most = max(map(len, table.writes))
        if most > rows:
            hint = "Go through the ids piece by piece: torch.arange(n).split(rows)"
            expect(f"graph with {nodes} nodes, rows={rows}: most rows written at once", most, rows, hint)


# Node 0 has four in-neighbours, each of which has three of its own: what is drawn differs, how many are drawn does not.
TREE = [(child, 0) for child in (1, 2, 3, 4)] + [(2 + 3 * child + k, child) for child in (1, 2, 3, 4) for k in range(3)]
READ_CASES = (([0], [3], 4), ([0], [4, 2], 13), ([0], [2, 4], 11), ([1, 2], [2], 6))


@exercise(3)
def check_nodes_to_read(nodes_to_read: Callable[[Any, Tensor, Sequence[int]], int]) -> None:
    """Exercise 3: ``nodes_to_read(graph, seeds, per_hop)`` gives the number of input nodes of a sampled batch."""
    import dgl

    graph = dgl.graph(tuple(map(list, zip(*TREE, strict=True))))
    for seeds, per_hop, expected in READ_CASES:
        got = nodes_to_read(graph, torch.tensor(seeds), per_hop)
        hint = "per_hop begins with the hop next to the seeds; DGL lists fan-outs outermost hop first."
        expect(f"a tree of 17 nodes, seeds {seeds}, per_hop {per_hop}", got, expected, hint)
