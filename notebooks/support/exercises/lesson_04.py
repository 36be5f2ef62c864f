"""Checker of lesson 4, partitioning."""

from collections.abc import Callable
from typing import Any

import torch

from support.exercises import exercise, expect

TABLE = torch.tensor([[3, 1], [0, 5], [4, 2], [1, 6], [2, 0], [6, 3], [5, 4]])  # not sorted in any column


@exercise(1)
def check_original_order(original_order: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    """Exercise 1: ``original_order(rows, node_map)`` changes the order of rows from new IDs to original IDs."""
    for ids in ([2, 0, 1], [3, 0, 4, 1, 2], [1, 2, 3, 4, 5, 6, 0]):
        node_map = torch.tensor(ids)
        expected = TABLE[: len(ids)]
        rows = expected[node_map]
        kept = rows.clone()
        hint = f"Row i belongs to original node node_map[i]. The rows were {kept.tolist()}."
        expect(f"rows for the node map {ids}", original_order(rows, node_map), expected, hint)
        expect("input rows after the call", rows, kept, "Return a new tensor, because the caller needs the input.")
