"""Checkers of lesson 0, Start here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from support.exercises import exercise, expect

GB = 10**9
FILL_HINT = "Half of each memory may hold the graph, and a machine that is needed in part is needed."
MACHINE_CASES = (
    (3 * GB, 16 * GB, 1),
    (16 * GB, 16 * GB, 2),
    (16 * GB + 1, 16 * GB, 3),
    (84 * GB, 16 * GB, 11),
    (1_174 * GB, 64 * GB, 37),
)


@exercise(1)
def check_machines_needed(machines_needed: Callable[[int, int], int]) -> None:
    """Exercise 1: ``machines_needed(total, memory)``, both in bytes, gives a number of machines."""
    for total, memory, expected in MACHINE_CASES:
        what = f"machines_needed({total:_}, {memory:_})"
        expect(what, machines_needed(total, memory), expected, FILL_HINT)


# (labels, training nodes, test nodes, test nodes of a class without a training node)
UNSEEN_CASES = (
    ([0, 0, 1, 2, 2, 2], [0, 2], [1, 3, 4], 2),
    ([0, 1, 0, 1], [0, 1], [2, 3], 0),
    ([3, 1, 4, 1, 5, 5, 4, 3], [1, 4], [0, 2, 3, 5, 6], 3),
    ([2, 2, 0], [2], [0, 1], 2),
)


@exercise(2)
def check_unseen(unseen: Callable[[Tensor, Tensor, Tensor], int]) -> None:
    """Exercise 2: ``unseen(labels, train, test)``, int64 and two bool masks (N,), gives a number of nodes."""
    for labels, train, test, expected in UNSEEN_CASES:
        masks = [torch.zeros(len(labels), dtype=torch.bool) for _ in range(2)]
        for mask, nodes in zip(masks, (train, test), strict=True):
            mask[nodes] = True
        what = f"labels {labels}, training nodes {train}, test nodes {test}"
        hint = "Count nodes, not classes: a class that no training node has, times its nodes in the test set."
        expect(what, unseen(torch.tensor(labels), *masks), expected, hint)
