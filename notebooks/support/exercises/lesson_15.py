"""Checkers of lesson 15, graphs with several types on many machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type, plain

# node_map of a part config, ids on the line, -> names and type-wise ids
RANGES = (
    (
        {"a": [[0, 3], [8, 10]], "b": [[3, 8], [10, 12]]},
        [0, 2, 3, 7, 8, 9, 10, 11],
        "aabbaabb",
        [0, 2, 0, 4, 3, 4, 5, 6],
    ),
    (
        {"x": [[0, 4], [5, 6], [9, 12]], "y": [[4, 5], [6, 9], [12, 13]]},
        [12, 4, 5, 8, 6, 0, 11],
        "yyxyyxx",
        [4, 0, 4, 3, 1, 0, 7],
    ),
    ({"o": [[0, 2], [2, 5]]}, [4, 0], "oo", [4, 0]),
)


@exercise(1)
def check_typed_ids(typed_ids: Callable[[Mapping[str, list[list[int]]], Tensor], Any]) -> None:
    """Exercise 1: type and type-wise id of nodes on the homogeneous line."""
    for ranges, ids, names, numbers in RANGES:
        got = typed_ids({name: [list(pair) for pair in own] for name, own in ranges.items()}, torch.tensor(ids))
        what = f"ranges {ranges}, nodes {ids}"
        expect_type(f"{what}: what came back", got, "tuple of 2")
        expect(f"{what}: types", list(got[0]), list(names), "the type whose range holds the id: first <= id < end")
        hint = "the nodes of this type in all earlier parts come first: add the lengths of their ranges"
        expect(f"{what}: type-wise ids", plain(got[1]), numbers, hint)


GRAPHS: tuple[dict[tuple[str, str, str], list[tuple[int, int]]], ...] = (
    {("a", "r", "b"): [(0, 0), (1, 0), (2, 1)], ("b", "r", "b"): [(1, 0)], ("b", "s", "a"): [(0, 2)]},
    {("a", "r", "b"): [(0, 1)], ("c", "r", "b"): [(0, 1), (1, 1), (1, 0)]},
    {("a", "r", "b"): [(2, 2)], ("b", "t", "a"): [(0, 0), (1, 0)]},
)
COUNTS = {"a": 3, "b": 3, "c": 2}
WIDTH = 2


@exercise(2)
def check_relational_sum(relational_sum: Callable[..., Tensor]) -> None:
    """Exercise 2: what an R-GCN layer adds up for the nodes of one type."""
    generator = torch.Generator().manual_seed(15)
    for edges in GRAPHS:
        rows = {
            name: torch.randint(0, 9, (count, WIDTH), generator=generator).float() for name, count in COUNTS.items()
        }
        weights = {r: torch.randint(-2, 3, (WIDTH, WIDTH), generator=generator).float() for r in edges}
        for target in sorted({relation[2] for relation in edges}, reverse=True):
            given = {r: (torch.tensor([p[0] for p in ps]), torch.tensor([p[1] for p in ps])) for r, ps in edges.items()}
            got = relational_sum(given, dict(rows), dict(weights), target, COUNTS[target])
            what = f"edges {edges}, nodes of type {target!r}"
            hint = _sum_hint(got, edges, rows, weights, target)
            expect(what, _rounded(got), _rounded(_relational(edges, rows, weights, target)), hint)


def _relational(edges: Any, rows: Any, weights: Any, target: str, *, mean: bool = True) -> Tensor:
    total = torch.zeros(COUNTS[target], WIDTH)
    for (source, name, end_type), pairs in edges.items():
        if end_type == target:
            paths = torch.zeros(COUNTS[target], COUNTS[source])
            for start, end in pairs:
                paths[end, start] += 1
            paths = paths / paths.sum(1, keepdim=True).clamp(min=1) if mean else paths
            total += paths @ rows[source] @ weights[source, name, end_type]
    return total


def _sum_hint(got: Any, edges: Any, rows: Any, weights: Any, target: str) -> str:
    summed = _rounded(_relational(edges, rows, weights, target, mean=False))
    if isinstance(got, Tensor) and torch.equal(_rounded(got), summed):
        return "the mean over the neighbours of a relation, not their sum"
    return (
        "for each relation into the type: the mean of the start nodes' rows, times its weight; no neighbour gives zeros"
    )


BATCHES = (
    ({"a": ([0, 1, 2, 5, 6], 8), "b": ([4], 4)}, {"a": [[0, 3], [3, 9]], "b": [[0, 1], [1, 7]]}, 0),
    ({"a": ([0, 1, 2, 5, 6], 8), "b": ([4], 4)}, {"a": [[0, 3], [3, 9]], "b": [[0, 1], [1, 7]]}, 1),
    ({"p": ([], 64), "q": ([9, 8, 0], 16)}, {"p": [[0, 4], [4, 5], [5, 9]], "q": [[0, 8], [8, 9], [9, 10]]}, 2),
)


@exercise(3)
def check_pulled_bytes(
    pulled_bytes: Callable[[Mapping[str, Tensor], Mapping[str, int], Mapping[str, Any], int], int],
) -> None:
    """Exercise 3: bytes that a batch with types pulls from other machines."""
    for batch, owned, part in BATCHES:
        nodes = {name: torch.tensor(ids, dtype=torch.int64) for name, (ids, _width) in batch.items()}
        widths = {name: width for name, (_ids, width) in batch.items()}
        got = pulled_bytes(nodes, widths, {name: [list(pair) for pair in own] for name, own in owned.items()}, part)
        expected = 0
        for name, (ids, width) in batch.items():
            first, end = owned[name][part]
            expected += 4 * width * sum(not first <= one < end for one in ids)
        given = {name: ids for name, (ids, _width) in batch.items()}
        what = f"part {part}, input nodes {given}, widths {widths}, type-wise ranges {owned}"
        hint = "each type has its own ranges and its own width; a float32 has four bytes"
        expect(what, plain(got), expected, hint)


def _rounded(value: Any) -> Any:
    return torch.round(value * 1000) / 1000 if isinstance(value, Tensor) and value.is_floating_point() else value
