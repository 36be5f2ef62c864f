"""Checkers of lesson 2, distributed tensors and embeddings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import Rows, exercise, expect, expect_type, rounded


@exercise(1)
def check_column_mean(column_mean: Callable[[Any, int], Tensor]) -> None:
    """Exercise 1: the mean of each column, with a limited number of rows in each read."""
    for count, width, limit in ((6, 2, 2), (7, 3, 3), (5, 1, 10)):
        table = Rows(torch.arange(count * width).reshape(count, width).float())
        case = f"a table of {count} rows and {width} columns, {limit} rows at a time"
        got = column_mean(table, limit)
        hint = "add up the sums of the chunks, then divide once by the number of rows: the last chunk is shorter"
        expect_type(f"type for {case}", got, "Tensor", "return a tensor with one number per column")
        if not (got.dtype == torch.float32 and got.shape == (width,) and torch.allclose(got, table.values.mean(0))):
            expect(f"mean for {case}", got, table.values.mean(0), hint)
        most = max(len(set(rows)) for rows in table.reads)
        if most > limit:
            expect(f"most rows read at once, for {case}", most, limit, "read tensor[start:end] in a loop")
        seen = sorted({row for rows in table.reads for row in rows})
        expect(f"rows read, for {case}", seen, list(range(count)))


@exercise(2)
def check_highest(path: str | Path) -> None:
    """Exercise 2: the learner's program stored the maximum of the values of both trainers in ten rows."""
    run_it = "run the command of the cell above again, without the grep, and read its last lines"
    expect(f"{Path(path).name} was written by the job", Path(path).exists(), True, run_it)
    got = json.loads(Path(path).read_text())
    offers = [[(37 * step + 13 * k + 50 * rank) % 997 for k in range(20)] for step in range(50) for rank in range(2)]
    highest = [float(max(max(offer[k], offer[k + 10]) for offer in offers)) for k in range(10)]
    if got in [[float(offer[k + 10]) for k in range(10)] for offer in offers[-2:]]:
        expect("the ten rows", "what was offered last", "the highest offers", "the marked line is still to do")
    hint = "compare with what the row holds, and mind a row that occurs twice: index_reduce_(0, ids, rows, 'amax')"
    expect("the ten rows", [rounded(row, 3) for row in got], highest, hint)


@exercise(3)
def check_sgd_step(sgd_step: Callable[[Any, Tensor, Tensor, float], None]) -> None:
    """Exercise 3: one step of sparse SGD with reads and writes of rows."""
    generator = torch.Generator().manual_seed(0)
    for ids in ([1, 4], [5, 2, 5], [3, 0, 3, 3]):
        start = torch.randn(6, 2, generator=generator)
        grad = torch.randn(len(ids), 2, generator=generator)
        weight = Rows(start)
        sgd_step(weight, torch.tensor(ids), grad, 0.5)
        expected = start.clone().index_add_(0, torch.tensor(ids), grad, alpha=-0.5)
        hint = "add up the gradients of each row first; ids.unique(return_inverse=True) and index_add_ help"
        for row in sorted(set(ids)):
            got, right = ([round(x, 3) for x in table[row].tolist()] for table in (weight.values, expected))
            if not torch.allclose(weight.values[row], expected[row], atol=1e-5):
                expect(f"row {row} after a step on ids {ids}", got, right, hint)
        for what, lists in (("read", weight.reads), ("written", weight.writes)):
            rows = sorted({row for rows in lists for row in rows})
            expect(f"rows {what} in a step on ids {ids}", rows, sorted(set(ids)), "touch only rows of the batch")
