"""Checkers of lesson 4, partitioning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from support.exercises import exercise, expect


@exercise(1)
def check_owner(owner: Callable[[list[list[int]], torch.Tensor], Any]) -> None:
    """``owner(ranges, ids)``: the part of each new node id, by the ranges of a part config."""
    cases = (
        ([[0, 4], [4, 9]], [0, 3, 4, 8]),
        ([[0, 7], [7, 9], [9, 20]], [19, 9, 8, 7, 6, 0, 6]),
        ([[0, 5], [5, 5], [5, 6]], [5, 4]),
    )
    for ranges, ids in cases:
        parts = [next(k for k, (first, end) in enumerate(ranges) if first <= i < end) for i in ids]
        expected = torch.tensor(parts)
        hint = "a range is [first, end), so its end is the first id of the next part"
        expect(f"owners of {ids} with the ranges {ranges}", owner(ranges, torch.tensor(ids)), expected, hint)


@exercise(2)
def check_original_order(original_order: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    """``original_order(rows, node_map)``: a table with one row per new id, sorted by original id instead."""
    maps = ([2, 0, 1], [3, 0, 4, 1, 2], [1, 2, 3, 4, 5, 6, 0])
    for ids in maps:
        node_map = torch.tensor(ids)
        rows = torch.stack([node_map * 10, node_map * 10 + 1], dim=1)  # each row tells its original id
        expected, _ = rows.sort(dim=0)
        kept = rows.clone()
        hint = "row i of the input belongs to original node node_map[i]: that is where it has to go"
        expect(f"rows for the node map {ids}", original_order(rows, node_map), expected, hint)
        expect("the table you were given, afterwards", rows, kept, "make a new tensor, the caller needs the old one")


@exercise(3)
def check_halo_nodes(halo_nodes: Callable[[Any, torch.Tensor, int], Any]) -> None:
    """``halo_nodes(graph, part_of, part)``: ids of the halo nodes of a part, sorted, each once."""
    import dgl

    cases = (
        # 0 -> 1 crosses; 3 -> 0 crosses the other way; 4 -> 1 and 4 -> 2 find the same node twice
        (([0, 3, 4, 4, 1, 5], [1, 0, 1, 2, 2, 4]), [0, 1, 1, 0, 0, 2], 1),
        (([5, 4, 3, 2, 1, 0, 5], [0, 0, 1, 1, 2, 3, 1]), [0, 0, 1, 1, 2, 2], 0),
        (([0, 1, 2], [1, 2, 0]), [0, 0, 0], 0),
    )
    for (src, dst), parts, part in cases:
        expected = sorted({s for s, d in zip(src, dst, strict=True) if parts[d] == part != parts[s]})
        pairs = ", ".join(f"{s}->{d}" for s, d in zip(src, dst, strict=True))
        what = f"halo nodes of part {part}; edges {pairs}; parts {parts}"
        graph = dgl.graph((src, dst), num_nodes=len(parts))
        hint = "an owned edge ends in the part; its start is a halo node if another part owns it; list it once"
        expect(what, halo_nodes(graph, torch.tensor(parts), part), torch.tensor(expected, dtype=torch.int64), hint)
