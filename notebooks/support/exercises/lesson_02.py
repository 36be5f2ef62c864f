"""Checkers of lesson 2, distributed tensors and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.exercises import Rows, exercise, expect, expect_type


@exercise(1)
def check_column_mean(column_mean: Callable[[Any, int], Tensor]) -> None:
    """Exercise 1: the mean of each column, a limited number of rows at a time."""
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
def check_sgd_step(sgd_step: Callable[[Any, Tensor, Tensor, float], None]) -> None:
    """Exercise 2: one step of sparse SGD, written with reads and writes of rows."""
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


def _embedding() -> Any:
    """A DistEmbedding in name only: made without a store, so that no DistGraph is needed."""
    from dgl.distributed import DistEmbedding

    return object.__new__(DistEmbedding)


class _Encoder(nn.Module):
    def __init__(self, table: Any, width: int) -> None:
        super().__init__()
        self.table = table
        self.linear = nn.Linear(width, 2)


class _Nested(nn.Module):
    def __init__(self, tables: list[Any]) -> None:
        super().__init__()
        self.users = tables[0]
        self.encoder = _Encoder(tables[1], 3)
        self.head = nn.Linear(2, 2, bias=False)


@exercise(3)
def check_collect(collect: Callable[[nn.Module], tuple[list[Any], list[nn.Parameter]]]) -> None:
    """Exercise 3: the embeddings for the sparse optimizer, the parameters for the dense one."""
    tables = [_embedding(), _embedding()]
    cases = {
        "a model without embedding": (nn.Linear(3, 2), []),
        "a model with one embedding": (_Encoder(tables[0], 4), tables[:1]),
        "a model with an embedding of its own and one in a part of it": (_Nested(tables), tables),
    }
    for case, (model, embeddings) in cases.items():
        got = collect(model)
        hint = "return two lists: embeddings, parameters"
        expect_type(f"type of the answer for {case}", got, "tuple of 2", hint)
        found, dense = ([id(x) for x in part] for part in got)
        hint = "look at vars(part).values() for every part in model.modules()"
        expect(f"number of embeddings of {case}", len(found), len(embeddings), hint)
        expect(f"the right embeddings of {case}", set(found) == {id(e) for e in embeddings}, True, hint)
        right = dense == [id(p) for p in model.parameters()]
        expect(f"dense parameters of {case} are those of model.parameters()", right, True)
