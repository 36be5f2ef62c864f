"""Checkers of lesson 5, data parallel by hand. The reader's function runs in forked ranks: it may come from a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.exercises import Unfinished, exercise, expect, expect_type, rounded
from tutorial_lib.processes import RanksTimedOut, fork

LIMIT = 15.0  # seconds for one case; it takes a fraction of one


def in_ranks(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Results of ``function(rank, world_size, *args)`` in ranks that have a process group.

    Raises:
        Unfinished: they did not all come back.
    """
    try:
        return fork(function, ranks, args, backend="gloo", threads=1, timeout=LIMIT)
    except RanksTimedOut as late:
        names = " and ".join(f"rank {rank}" for rank in late.ranks)
        raise Unfinished(
            f"{names} of {ranks} ranks did not come back\n"
            "  hint: each rank must call the same collectives, as often, in the same order."
        ) from None


# Per case, for each rank: its number of examples, the gradients of a weight (2,) and a bias (1,).
GRADIENTS = (
    ((2, [1.0, 2.0], [4.0]), (2, [3.0, 6.0], [0.0])),
    ((3, [2.0, 4.0], [1.0]), (1, [-2.0, 8.0], [5.0])),
    ((1, [6.0, 0.0], [3.0]), (4, [0.0, 1.0], [2.0]), (1, [0.0, 2.0], [1.0])),
)


@exercise(1)
def check_average_gradients(average_gradients: Callable[[nn.Module, int], None]) -> None:
    """Exercise 1: ``average_gradients(model, examples)`` puts the gradient of the whole batch into each ``.grad``."""

    def in_rank(rank: int, _world_size: int, case: Any) -> list[float]:
        examples, weight, bias = case[rank]
        model = nn.Linear(2, 1)
        model.weight.grad, model.bias.grad = torch.tensor([weight]), torch.tensor(bias)
        average_gradients(model, examples)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return [round(value, 4) for gradient in gradients for value in gradient.flatten().tolist()]

    for case in GRADIENTS:
        sizes = [examples for examples, *_ in case]
        rows = [[*weight, *bias] for _, weight, bias in case]
        columns = zip(*rows, strict=True)
        mean = [round(sum(n * g for n, g in zip(sizes, column, strict=True)) / sum(sizes), 4) for column in columns]
        for rank, got in enumerate(in_ranks(in_rank, len(case), case)):
            hint = "all_reduce gives a sum; " + (
                "divide it by the number of ranks."
                if len(set(sizes)) == 1
                else "multiply by `examples` before it, and divide by the examples of all ranks after it."
            )
            expect(f"rank {rank}, shares of {sizes} examples: gradients of weight and bias", got, mean, hint)


SPLITS = ((8, 2), (10, 4), (7, 3), (2, 3))


@exercise(2)
def check_own_part(own_part: Callable[[Tensor, int, int], tuple[Tensor, float]]) -> None:
    """Exercise 2: ``own_part(batch, rank, world_size)`` gives the rank's ids, and the factor of its loss under DDP."""
    for count, ranks in SPLITS:
        batch = torch.arange(count) * 10 + 3
        what = f"{count} ids over {ranks} ranks"
        parts = [own_part(batch, rank, ranks) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            expect_type(f"{what}: type of what rank {rank} gets", part, "tuple of 2", "return ids, factor")
            expect_type(f"{what}: first item of rank {rank}", part[0], "Tensor")
        together = torch.cat([ids for ids, _ in parts])
        hint = "len(batch) // world_size drops the remainder; try tensor_split, or batch[rank::world_size]."
        expect(f"{what}: ids of all ranks together, sorted", together.sort().values, batch, hint)
        sizes = [len(ids) for ids, _ in parts]
        expect(f"{what}: largest share less smallest, at most one", max(max(sizes) - min(sizes), 1), 1, hint)
        right = [round(size * ranks / count, 6) for size in sizes]
        got = [round(float(factor), 6) for _, factor in parts]
        hint = "DDP divides the sum by world_size; each example should count 1 / len(batch)."
        expect(f"{what}: factors of shares of {sizes} ids", got, right, hint)


# Per case, for each rank: predictions and labels.
ANSWERS = (
    (([1, 2], [1, 2]), ([0, 1, 1, 0, 2, 2], [0, 2, 2, 1, 1, 0])),
    (([3], [3]), ([], []), ([1, 0, 1, 0], [1, 1, 0, 0])),
    (([0, 0], [1, 1]), ([2, 2], [2, 2])),
)


@exercise(3)
def check_global_accuracy(global_accuracy: Callable[[Tensor, Tensor], float]) -> None:
    """Exercise 3: ``global_accuracy(predictions, labels)``, called on each rank, gives the same number on all."""

    def in_rank(rank: int, _world_size: int, case: Any) -> Any:
        value = global_accuracy(*(torch.tensor(values, dtype=torch.int64) for values in case[rank]))
        return rounded(value, 4)

    for case in ANSWERS:
        right = [sum(p == y for p, y in zip(*answers, strict=True)) for answers in case]
        sizes = [len(labels) for _, labels in case]
        counted = ", ".join(f"{a} of {b}" for a, b in zip(right, sizes, strict=True))
        got = in_ranks(in_rank, len(case), case)
        hint = "Sum the right answers and the answers over the ranks; divide once, at the end."
        expected = [round(sum(right) / sum(sizes), 4)] * len(case)
        expect(f"ranks with {counted} right: what each rank returns", got, expected, hint)
