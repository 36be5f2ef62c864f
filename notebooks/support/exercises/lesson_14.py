"""Checkers of lesson 14, learned rows on many machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain

# nodes of each machine's part, width, optimiser -> bytes on each machine
MEMORY_CASES = (
    (([1000, 1000], 64, "SparseAdam"), [772_000, 772_000]),
    (([300, 500, 200], 16, "SparseAdam"), [58_800, 98_000, 39_200]),
    (([1000], 64, "SparseAdagrad"), [512_000]),
    (([84_000, 85_343], 128, "SparseAdagrad"), [86_016_000, 87_391_232]),
    (([7, 0], 1, "SparseAdam"), [112, 0]),
)


@exercise(1)
def check_machine_bytes(machine_bytes: Callable[[list[int], int, str], Any]) -> None:
    """Exercise 1: memory of rows and of their optimiser on each machine."""
    for (nodes, width, optimizer), expected in MEMORY_CASES:
        got = machine_bytes(list(nodes), width, optimizer)
        expect(f"{nodes} nodes, rows of {width}, {optimizer}", plain(got), expected, _memory_hint(got, nodes, width))


def _memory_hint(got: Any, nodes: Sequence[int], width: int) -> str:
    if got == [4 * count * width for count in nodes]:
        return "these are the rows alone; the optimiser has tensors, too"
    if got == [12 * count * width for count in nodes]:
        return "SparseAdam also counts the steps of each row, as a float32"
    return "a float32 has four bytes; SparseAdam keeps 2 numbers for each of the row's and a counter, SparseAdagrad 1"


@exercise(2)
def check_merge_gradients(merge_gradients: Callable[[list[Tensor], list[Tensor]], Any]) -> None:
    """Exercise 2: one gradient for each row out of those of all ranks."""
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
    """Rows in rising order, and for each the mean of its gradients."""
    rows, place, count = torch.cat(list(ids)).unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(rows), gradients[0].shape[1]).index_add_(0, place, torch.cat(list(gradients)))
    return rows, total / count[:, None]


@exercise(3)
def check_vote(vote: Callable[[Tensor, Tensor, Tensor, Tensor, int], Any]) -> None:
    """Exercise 3: the class that most labelled neighbours have."""
    generator = torch.Generator().manual_seed(3)
    cases = [(torch.tensor([0, 1, 2]), torch.tensor([3, 3, 3]), torch.tensor([1, 0, 1, 9]), torch.arange(3), 2)]
    for nodes, edges, classes in ((8, 30, 3), (15, 70, 4)):
        src, dst = torch.randint(nodes, (2, edges), generator=generator)
        labels = torch.randint(classes, (nodes,), generator=generator)
        cases.append((src, dst, labels, torch.randperm(nodes, generator=generator)[: nodes // 2], classes))
    for src, dst, labels, known, classes in cases:
        got = vote(src.clone(), dst.clone(), labels.clone(), known.clone(), classes)
        pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
        what = f"{len(labels)} nodes, {len(pairs)} edges, labels of {sorted(known.tolist())} known"
        hint = "count[dst, label of src] for the edges whose src is known; then argmax over the classes"
        counts = counted(src, dst, labels, known, classes)
        kind = f"tensor {tuple(got.shape)} {got.dtype}" if isinstance(got, Tensor) else type(got).__name__
        expect(f"{what}: what came back", kind, f"tensor {(len(labels),)} torch.int64")
        votes = counts.gather(1, got[:, None])[:, 0]
        expect(f"{what}: votes for the class of each node", votes, counts.amax(1), hint)  # any class of a draw will do


def counted(src: Tensor, dst: Tensor, labels: Tensor, known: Tensor, classes: int) -> Tensor:
    """Labelled in-neighbours of each node by class, int64 (N, classes)."""
    counts = torch.zeros(len(labels), classes, dtype=torch.int64)
    seen = torch.isin(src, known)
    counts.index_put_((dst[seen], labels[src[seen]]), torch.ones(int(seen.sum()), dtype=torch.int64), accumulate=True)
    return counts
