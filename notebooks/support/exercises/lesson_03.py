"""Checker of lesson 3, distributed sampling."""

from collections.abc import Callable
from itertools import combinations
from statistics import pstdev

import torch
from torch import Tensor

from support.exercises import exercise, expect, plain, rounded

VALUES = ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], [2.0, 6.0, 5.0], [-1.0, 1.0])
HINTS = {
    "all": "A sample of all neighbors has no error.",
    "some": "Take the square root at the end, and divide by the number of values in σ² (in torch: correction=0).",
}


@exercise(1)
def check_standard_error(standard_error: Callable[[Tensor, int], float]) -> None:
    """Exercise 1: compare ``standard_error(values, fanout)`` with the means of all possible samples."""
    for values in VALUES:
        for fanout in (*range(1, len(values)), len(values), -1, 20):
            size = fanout if 0 < fanout < len(values) else len(values)
            expected = pstdev(sum(chosen) / size for chosen in combinations(values, size))
            what = f"standard_error(torch.tensor({values}), {fanout})"
            got = rounded(plain(standard_error(torch.tensor(values), fanout)), 4)
            expect(what, got, round(expected, 4), HINTS["all" if size == len(values) else "some"])
