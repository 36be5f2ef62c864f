"""Checkers of lesson 13, link prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, rounded


def _symmetric(nodes: int, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ends of the edges of a random symmetric graph, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randint(nodes, (2, pairs), generator=generator)
    keys = (torch.minimum(u, v) * nodes + torch.maximum(u, v))[u != v].unique()
    low, high = keys // nodes, keys % nodes
    src, dst = torch.cat([low, high]), torch.cat([high, low])
    order = torch.randperm(len(src), generator=generator)
    return src[order], dst[order]


@exercise(1)
def check_with_twins(with_twins: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Exercise 1: hold out the other direction of every edge that is held out."""
    cases = [
        (torch.tensor([0, 2, 1, 3, 1, 0]), torch.tensor([1, 1, 0, 0, 2, 3]), torch.tensor([0, 1, 1, 0, 0, 0]) == 1)
    ]
    for seed, nodes, pairs in ((1, 6, 8), (2, 40, 200), (3, 2000, 3000)):
        src, dst = _symmetric(nodes, pairs, seed)
        cases.append((src, dst, torch.rand(len(src), generator=torch.Generator().manual_seed(seed)) < 0.2))
    cases.append((*_symmetric(5, 9, 4), torch.zeros(len(_symmetric(5, 9, 4)[0]), dtype=torch.bool)))
    for src, dst, mask in cases:
        held = {(min(a, b), max(a, b)) for a, b in zip(src[mask].tolist(), dst[mask].tolist(), strict=True)}
        pairs_of_edges = zip(src.tolist(), dst.tolist(), strict=True)
        expected = torch.tensor([(min(a, b), max(a, b)) in held for a, b in pairs_of_edges])
        shown = f", from {src.tolist()} to {dst.tolist()}, chosen {mask.int().tolist()}" if len(src) < 10 else ""
        before = mask.clone()
        got = with_twins(src.clone(), dst.clone(), mask.clone())
        hint = "an edge (u, v) must be held out if (u, v) or (v, u) is chosen; compare undirected pairs"
        if isinstance(got, Tensor) and torch.equal(got, before):
            hint = "this is the mask as it came; " + hint
        expect(f"held-out mask of {len(src)} edges{shown}", got, expected, hint)


MRR_CASES = (
    (([2.0, 0.5], [[1.0, 0.0, 3.0], [0.1, 0.2, 0.3]]), 0.75),
    (([1.0], [[1.0, 0.0]]), 1 / 1.5),
    (([0.0, 0.0, 5.0, -1.0], [[1.0], [-1.0], [4.0], [0.0]]), 0.75),
    (([3.0], [[9.0, 8.0, 7.0, 3.0, 3.0, 1.0]]), 0.2),
)


@exercise(2)
def check_mean_reciprocal_rank(mean_reciprocal_rank: Callable[[Tensor, Tensor], float]) -> None:
    """Exercise 2: MRR from scores; a tie counts as one half."""
    for (positive, negative), expected in MRR_CASES:
        got = mean_reciprocal_rank(torch.tensor(positive), torch.tensor(negative))
        hint = "rank = 1 + negatives that score higher + half of those that score the same; mean of 1 / rank"
        number = rounded(got, 6)
        if number == rounded(1 / _mean_rank(positive, negative), 6) != rounded(expected, 6):
            hint = "this is 1 / (mean of the ranks); take 1 / rank of each edge first"
        expect(f"edges score {positive}, their negatives {negative}", number, rounded(expected, 6), hint)


def _mean_rank(positive: list[float], negative: list[list[float]]) -> float:
    ranks = [
        1 + sum(n > p for n in others) + sum(n == p for n in others) / 2
        for p, others in zip(positive, negative, strict=True)
    ]
    return sum(ranks) / len(ranks)


@exercise(3)
def check_gather_ranks(gather_ranks: Callable[[list[tuple[Tensor, Tensor]], Tensor], Any]) -> None:
    """Exercise 3: put what the trainers found per edge into the data set's order of edges."""
    for seed, edges, trainers in ((1, 6, 2), (2, 50, 3), (3, 400, 4)):
        generator = torch.Generator().manual_seed(seed)
        edge_map = torch.randperm(edges, generator=generator)
        test = torch.randperm(edges, generator=generator)[: edges * 2 // 3].sort().values
        ranks = torch.randint(1, 101, (len(test),), generator=generator).float()
        owner = torch.arange(len(test)) * trainers // len(test)
        shares = [(test[owner == k], ranks[owner == k]) for k in range(trainers)]
        original = edge_map[test]
        order = original.argsort()
        ids = f", edge_map {edge_map.tolist()}, shares {[part.tolist() for part, _ in shares]}" if edges < 10 else ""
        what = f"{edges} edges, {len(test)} test edges of {trainers} trainers{ids}"
        got = gather_ranks([(a.clone(), b.clone()) for a, b in shares], edge_map.clone())
        expect_type(f"{what}: what came back", got, "tuple of 2")
        hint = "edge_map[new id] is the original id; then sort by it"
        if isinstance(got[0], Tensor) and torch.equal(got[0], test):
            hint = "these are ids of the partition; " + hint
        expect(f"{what}: original ids", got[0], original[order], hint)
        expect(f"{what}: ranks", got[1], ranks[order], "the same order for the ranks as for the ids")
