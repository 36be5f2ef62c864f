"""Checkers of lesson 4, partitioning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.exercises import Unfinished, exercise, expect, plain


@exercise(1)
def check_owner(owner: Callable[[list[list[int]], torch.Tensor], Any]) -> None:
    """``owner(ranges, ids)`` returns the part of each new node ID, from the ranges in the partition description."""
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
    """``original_order(rows, node_map)`` changes the order of rows from new IDs to original IDs."""
    maps = ([2, 0, 1], [3, 0, 4, 1, 2], [1, 2, 3, 4, 5, 6, 0])
    for ids in maps:
        node_map = torch.tensor(ids)
        rows = torch.stack([node_map * 10, node_map * 10 + 1], dim=1)  # each row contains its original ID
        expected, _ = rows.sort(dim=0)
        kept = rows.clone()
        hint = "row i of the input belongs to original node node_map[i]: that is where it has to go"
        expect(f"rows for the node map {ids}", original_order(rows, node_map), expected, hint)
        expect("the table you were given, afterwards", rows, kept, "make a new tensor, the caller needs the old one")


WANTED = {"fanouts": [10, 5], "batch_size": 50}
TOLERANCE = 0.10


def check_prediction(prediction: Any, result: str | Path) -> None:
    """Exercise 3: compare the predicted bytes with the measured ones of the learner's job.

    Args:
        prediction: bytes that both machines receive in one epoch.
        result: output of the program, the settings of each rank and its bytes by phase.
    """
    exercise(3)(lambda answer: _check_bytes(answer, Path(result)))(prediction)


def _check_bytes(prediction: Any, result: Path) -> None:
    prediction = plain(prediction)
    if type(prediction) not in (int, float):
        expect("your prediction", prediction, "a number of bytes", "see expect_rows and model_bytes")
    if not result.exists():
        raise Unfinished(f"{result} is not there\n  hint: write the program, and start it on two machines as above")
    ranks = json.loads(result.read_text())
    expect("ranks that have written", len(ranks), 2, "the job has two machines with one trainer each")
    for rank, found in enumerate(ranks):
        for name, wanted in WANTED.items():
            expect(f"{name} of rank {rank} in {result.name}", found[name], wanted, "two lines of the program say it")
    measured = sum(found[phase] for found in ranks for phase in ("sample", "pull", "update"))
    off = prediction / measured - 1
    if not abs(off) <= TOLERANCE:
        hint = "remote rows and steps of this run; the overhead of the first run; gradients in every step"
        lines = [f"bytes that reach both machines: {off:+.0%}, at most {TOLERANCE:.0%} are allowed"]
        lines += [f"  got       {prediction:,.0f}", f"  expected  {measured:,}", f"  hint: {hint}"]
        raise Unfinished("\n".join(lines))
