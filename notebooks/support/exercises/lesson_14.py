"""Checkers of lesson 14, learnable embeddings on many machines."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain, rounded
from support.exercises.programs import read_result

# nodes of each machine's part, width, optimizer -> bytes on each machine
MEMORY_CASES = (
    (([1000, 1000], 64, "SparseAdam"), [772_000, 772_000]),
    (([300, 500, 200], 16, "SparseAdam"), [58_800, 98_000, 39_200]),
    (([1000], 64, "SparseAdagrad"), [512_000]),
    (([84_000, 85_343], 128, "SparseAdagrad"), [86_016_000, 87_391_232]),
    (([7, 0], 1, "SparseAdam"), [112, 0]),
)


@exercise(2)
def check_machine_bytes(machine_bytes: Callable[[list[int], int, str], Any]) -> None:
    """Exercise 2: memory of the embeddings and their optimizer state on each machine."""
    for (nodes, width, optimizer), expected in MEMORY_CASES:
        got = machine_bytes(list(nodes), width, optimizer)
        expect(f"{nodes} nodes, rows of {width}, {optimizer}", plain(got), expected, _memory_hint(got, nodes, width))


def _memory_hint(got: Any, nodes: Sequence[int], width: int) -> str:
    if got == [4 * count * width for count in nodes]:
        return "This counts only the rows. The optimizer stores tensors, too."
    if got == [12 * count * width for count in nodes]:
        return "SparseAdam also stores the number of steps of each row as a float32."
    return "A float32 has four bytes. SparseAdagrad stores 1 number per element, SparseAdam 2 and a counter per row."


@exercise(1)
def check_merge_gradients(merge_gradients: Callable[[list[Tensor], list[Tensor]], Any]) -> None:
    """Exercise 1: merge the gradients of all ranks into one gradient for each row."""
    generator = torch.Generator().manual_seed(14)
    cases = [([torch.tensor([0]), torch.tensor([0])], [torch.tensor([[2.0]]), torch.tensor([[6.0]])])]
    for ranks, rows, width in ((2, 9, 3), (3, 12, 2), (1, 5, 4)):
        ids = [torch.randperm(rows, generator=generator)[: rows - 2 - k] for k in range(ranks)]
        cases.append((ids, [torch.randint(-8, 8, (len(i), width), generator=generator) * 6.0 for i in ids]))
    cases.append(([torch.tensor([4]), torch.tensor([], dtype=torch.int64)], [torch.ones(1, 2), torch.empty(0, 2)]))
    for ids, gradients in cases:
        got = merge_gradients([i.clone() for i in ids], [g.clone() for g in gradients])
        what = f"rows {[i.tolist() for i in ids]}"
        expect_type(f"{what}: type of the result", got, "tuple of 2")
        rows, means = merged(ids, gradients)
        expect(f"{what}: updated rows", got[0], rows, "Each row once, in ascending order, see torch.unique.")
        hint = "Divide the sum by the number of ranks that have the row, not by the world size."
        expect(f"{what}: merged gradients", got[1], means, hint)


def merged(ids: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the IDs in ascending order, and the mean of the gradients of each row."""
    rows, place, count = torch.cat(list(ids)).unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(rows), gradients[0].shape[1]).index_add_(0, place, torch.cat(list(gradients)))
    return rows, total / count[:, None]


# node -> gradients of two ranks, None if the rank does not use the row
GRADIENTS = {"0": (2.0, 6.0), "1": (4.0, None), "2": (None, 3.0), "12000": (1.0, -5.0)}


@exercise(3)
def check_sparse_sgd(program: str) -> None:
    """Exercise 3: compare the rows after two SGD steps of the learner's program on two machines.

    Args:
        program: path of the program.
    """
    rows = read_result(program)
    expect(f"{program}: nodes", sorted(rows), sorted(GRADIENTS), "Do not change GRADIENTS.")
    for node, (first, second) in GRADIENTS.items():
        expected = -0.5 * 2 * ((first or 0.0) + (second or 0.0)) / 2  # rate, steps, mean over all ranks
        got = [rounded(number, 4) for number in rows[node]]
        what = f"row of node {node} after two steps with the gradients {first} and {second}, rate 0.5"
        expect(what, got, [expected, expected], _sgd_hint(got[0], first, second))


def _sgd_hint(got: Any, first: float | None, second: float | None) -> str:
    had = [gradient for gradient in (first, second) if gradient is not None]
    if len(had) == 2 and got in (-had[0], -had[1]):
        return "One gradient is lost, because idx contains the row twice and the last write wins. See torch.unique."
    if len(had) == 2 and got == -sum(had):
        return "This is the sum. Divide it by self._world_size."
    if got == -sum(had) / len(had):
        return "This is DGL's mean over the ranks that have the row. DDP divides by the number of all ranks."
    return "Subtract the sum of the gradients of each row, divided by self._world_size, times self._lr."
