"""The checker of lesson 2."""

import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_02

ANSWERS = solutions("02")


def mean_of_means(tensor, rows):
    ends = range(0, len(tensor), rows)
    return torch.stack([tensor[k : min(k + rows, len(tensor))].mean(0) for k in ends]).mean(0)


def open_slice(tensor, rows):
    """A tensor would shorten the slice, but a DistTensor reads rows that do not exist."""
    return torch.cat([tensor[k : k + rows] for k in range(0, len(tensor), rows)]).mean(0)


def whole_chunks_only(tensor, rows):
    rows = min(rows, len(tensor))
    return sum(tensor[k : k + rows].sum(0) for k in range(0, len(tensor) - rows + 1, rows)) / len(tensor)


def first_and_last(tensor, _rows):
    """Correct only for numbers with equal differences, such as those of the checker."""
    return (tensor[0:1] + tensor[len(tensor) - 1 : len(tensor)]).flatten() / 2


MEANS = {
    "past the end": (open_slice, "Your code raised IndexError: index 7 is out of bounds"),
    "whole chunks": (whole_chunks_only, "mean for a table of 7 rows"),
    "first and last": (first_and_last, r"rows read, .* 6 rows and 2 columns, 2 rows at a time\n  got       \[0, 5\]"),
    "stub": (lambda _t, _n: None, "got       'NoneType'"),
    "not a method": (lambda t, _n: t.mean(0), "Your code raised .*'DistTensor' object has no attribute 'mean'"),
    "at once": (lambda t, _n: t[0 : len(t)].mean(0), "most rows read at once, for a table of 6 rows and 2 columns"),
    "mean of means": (mean_of_means, "mean for a table of 7 rows"),
}
test_right_mean, test_wrong_mean = answer_tests(lesson_02.check_column_mean, [ANSWERS.column_mean], MEANS)
