"""Checker of lesson 6, node classification on many ranks."""

from collections.abc import Callable
from typing import Any

import torch

from support.exercises import exercise, expect
from support.processes import fork

# labels, and predictions of every node; the ranks have nodes 0, 3, 6, ... and 1, 4, ... and 2, 5, ...
CASES = (
    ([0, 0, 0, 1], [0, 0, 1, 1], 3),
    ([0] * 20 + [1] * 7 + [3] * 3 + [4], [0] * 25 + [1] * 2 + [3] * 2 + [4] * 2, 5),  # class 2 has no node
)
RANKS = 3


@exercise(1)
def check_macro_accuracy(macro_accuracy: Callable[[Any, Any, int], float]) -> None:
    """Exercise 1: every rank returns the mean of the accuracies of all classes."""
    for labels, predictions, classes in CASES:
        pair = torch.tensor(predictions), torch.tensor(labels)
        expected = [(pair[0][pair[1] == k] == k).double().mean().item() for k in pair[1].unique()]

        def on_rank(rank: int, size: int) -> float:
            return macro_accuracy(pair[0][rank::size], pair[1][rank::size], classes)  # noqa: B023

        results = fork(on_rank, RANKS, backend="gloo", threads=1, timeout=60, echo=False)
        got = [round(value, 4) if isinstance(value, float) else value for value in results]
        hint = "Sum two vectors over the ranks, the correct predictions and the nodes of each class. Divide afterwards."
        what = f"{len(labels)} nodes, result of each rank"
        expect(what, got, [round(sum(expected) / len(expected), 4)] * RANKS, hint)
