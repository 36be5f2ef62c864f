"""Checkers of lesson 14, learnable embeddings on many machines."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain, rounded
from support.exercises.programs import result

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
        return "these are the rows alone; the optimizer has tensors, too"
    if got == [12 * count * width for count in nodes]:
        return "SparseAdam also counts the steps of each row, as a float32"
    return "a float32 has four bytes; SparseAdam keeps 2 numbers for each of the row's and a counter, SparseAdagrad 1"


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
        expect_type(f"{what}: what came back", got, "tuple of 2")
        rows, means = merged(ids, gradients)
        expect(f"{what}: which rows change", got[0], rows, "each once, in rising order: torch.unique")
        hint = "the sum over the ranks that have the row, divided by their number: not by that of all ranks"
        expect(f"{what}: their gradients", got[1], means, hint)


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
    found = result(program)
    expect(f"{program}: nodes", sorted(found), sorted(GRADIENTS), "leave GRADIENTS as they are")
    for node, (first, second) in GRADIENTS.items():
        expected = -0.5 * 2 * ((first or 0.0) + (second or 0.0)) / 2  # rate, steps, mean over all ranks
        got = [rounded(number, 4) for number in found[node]]
        what = f"row of node {node} after two steps with the gradients {first} and {second}, rate 0.5"
        expect(what, got, [expected, expected], _sgd_hint(got[0], first, second))


def _sgd_hint(got: Any, first: float | None, second: float | None) -> str:
    had = [gradient for gradient in (first, second) if gradient is not None]
    if len(had) == 2 and got in (-had[0], -had[1]):
        return "one of the two gradients is lost: idx names the row twice, and the last one wins; see torch.unique"
    if len(had) == 2 and got == -sum(had):
        return "this is the sum; divide by self._world_size"
    if got == -sum(had) / len(had):
        return "this is the mean over the ranks that had the row, as DGL takes it; DDP divides by all ranks"
    return "for each row: the sum of its gradients, divided by self._world_size, times self._lr"
