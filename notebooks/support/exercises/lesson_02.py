"""Checker of lesson 2, distributed tensors and embeddings."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.exercises import Rows, exercise, expect, expect_type


@exercise(1)
def check_column_mean(column_mean: Callable[[Any, int], Tensor]) -> None:
    """Exercise 1: the mean of each column, with a limited number of rows in each read."""
    for count, width, limit in ((6, 2, 2), (7, 3, 3), (5, 1, 10)):
        table = Rows(torch.arange(count * width).reshape(count, width).float())
        case = f"a table of {count} rows and {width} columns, {limit} rows at a time"
        got = column_mean(table, limit)
        hint = "Add the sums of the chunks, and divide once by the number of rows. The last chunk is shorter."
        expect_type(f"type for {case}", got, "Tensor", "return a tensor with one number per column")
        if not (got.dtype == torch.float32 and got.shape == (width,) and torch.allclose(got, table.values.mean(0))):
            expect(f"mean for {case}", got, table.values.mean(0), hint)
        most = max(len(set(rows)) for rows in table.reads)
        if most > limit:
            expect(f"most rows read at once, for {case}", most, limit, "Read tensor[start:end] in a loop.")
        seen = sorted({row for rows in table.reads for row in rows})
        expect(f"rows read, for {case}", seen, list(range(count)))
