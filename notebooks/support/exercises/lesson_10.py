"""Checkers of lesson 10, training on many machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain, rounded

# training nodes, ranks, batch size of a rank, (batch size, learning rate) of one process -> steps, effective, rate
PLAN_CASES = (
    ((983, 4, 49, (196, 0.01)), ([6, 6, 6, 5], 196, 0.01)),
    ((1000, 2, 100, (100, 0.01)), ([5, 5], 200, 0.02)),
    ((301, 3, 20, (120, 0.008)), ([6, 5, 5], 60, 0.004)),
    ((90, 4, 1000, (1000, 0.003)), ([1, 1, 1, 1], 4000, 0.012)),
    ((7, 1, 2, (4, 0.5)), ([4], 2, 0.25)),
)


@exercise(1)
def check_plan_epoch(plan_epoch: Callable[[int, int, int, tuple[int, float]], Any]) -> None:
    """Exercise 1: steps of each rank, effective batch size, learning rate by the linear rule."""
    for arguments, (steps, effective, rate) in PLAN_CASES:
        nodes, ranks, batch_size, alone = arguments
        what = f"{nodes} training nodes, {ranks} rank(s) with batches of {batch_size}, alone {alone}"
        got = plan_epoch(*arguments)
        expect_type(f"{what}: what came back", got, "tuple of 3")
        hint = "shares differ by at most one node, the larger ones first; then round up in each rank"
        expect(f"{what}: steps of each rank", plain(got[0]), steps, hint)
        expect(f"{what}: effective batch size", got[1], effective, "in one step every rank takes a batch")
        expect(f"{what}: learning rate", rounded(got[2], 9), rate, "alone's, times effective batch / alone's batch")


ACCURACY_CASES = (
    (([0.5, 1.0], [30, 10]), 0.625),
    (([0.8, 0.6], [50, 50]), 0.7),
    (([0.9, math.nan, 0.4], [10, 0, 40]), 0.5),
    (([0.75], [8]), 0.75),
    (([math.nan, 1.0, 0.0, 0.5], [0, 1, 3, 4]), 0.375),
)


@exercise(2)
def check_global_accuracy(global_accuracy: Callable[[list[float], list[int]], float]) -> None:
    """Exercise 2: one accuracy from those of the ranks."""
    for (accuracies, counts), expected in ACCURACY_CASES:
        got = global_accuracy(list(accuracies), list(counts))
        hint = "accuracy times count is the number of right answers; a rank with 0 nodes has none (nan * 0 is nan)"
        expect(f"accuracies {accuracies} on {counts} nodes", rounded(got, 9), expected, hint)


@exercise(3)
def check_remote_bytes(remote_bytes: Callable[[list[Tensor], int, int, int], int]) -> None:
    """Exercise 3: bytes of features that come from other parts."""
    generator = torch.Generator().manual_seed(10)
    cases = [([torch.tensor([3, 9, 10, 14]), torch.tensor([3, 9, 12, 20])], 10, 20, 100)]
    for first, end, width, batches in ((0, 40, 16, 3), (40, 100, 100, 5), (100, 130, 1, 1)):
        drawn = [torch.randperm(130, generator=generator)[: 20 + 7 * k] for k in range(batches)]
        cases.append((drawn, first, end, width))
    cases.append(([torch.arange(5)], 0, 5, 8))
    for drawn, first, end, width in cases:
        sizes = [len(nodes) for nodes in drawn]
        ids = f", {[nodes.tolist() for nodes in drawn]}" if sum(sizes) < 10 else ""
        what = f"part {first} to {end - 1}, batches with {sizes} input nodes{ids}, rows of {width}"
        got = remote_bytes([nodes.clone() for nodes in drawn], first, end, width)
        expect(what, plain(got), 4 * width * _rows(drawn, first, end), _bytes_hint(got, drawn, first, end, width))


def _rows(batches: Sequence[Tensor], first: int, end: int) -> int:
    return sum(sum(not first <= node < end for node in nodes.tolist()) for nodes in batches)


def _bytes_hint(got: Any, batches: Sequence[Tensor], first: int, end: int, width: int) -> str:
    everything = torch.cat(list(batches))
    if got == 4 * width * _rows([everything.unique()], first, end):
        return "a node that two batches need is pulled twice"
    if got == 4 * width * (len(everything) - _rows(batches, first, end)):
        return "these are the rows of the own part"
    if got == width * _rows(batches, first, end):
        return "a float32 has four bytes"
    return "end is the first node of the next part; a row has width numbers of four bytes"
