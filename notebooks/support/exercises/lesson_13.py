"""Checkers of lesson 13, link prediction."""

from collections.abc import Callable

import torch
from torch import Tensor

from support.exercises import exercise, expect
from support.exercises.programs import read_result


def _symmetric(nodes: int, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of a random symmetric graph, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randint(nodes, (2, pairs), generator=generator)
    keys = (torch.minimum(u, v) * nodes + torch.maximum(u, v))[u != v].unique()
    low, high = keys // nodes, keys % nodes
    src, dst = torch.cat([low, high]), torch.cat([high, low])
    order = torch.randperm(len(src), generator=generator)
    return src[order], dst[order]


@exercise(1)
def check_with_twins(with_twins: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Exercise 1: hold out both directions of each held-out edge."""
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
        hint = "Hold out an edge (u, v) if (u, v) or (v, u) is chosen. Compare undirected pairs."
        if isinstance(got, Tensor) and torch.equal(got, before):
            hint = "Your function returned the input mask. " + hint
        expect(f"held-out mask of {len(src)} edges{shown}", got, expected, hint)


@exercise(2)
def check_in_batch(program: str) -> None:
    """Exercise 2: check the program's output about the last batch of each rank and about the traffic.

    Args:
        program: path of the program.
    """
    methods = read_result(program)
    hint = "Run the program on two machines with --ways in_batch."
    expect(f"methods that {program} measured", list(methods), ["in_batch"], hint)
    ranks = methods["in_batch"]["ranks"]
    expect("number of ranks", len(ranks), 2, hint)
    for rank, report in enumerate(ranks):
        src, dst, negatives = report["batch"]
        expect(f"rank {rank}: edges with negatives", len(negatives), len(src), "Return one row per edge.")
        counts = sorted({len(row) for row in negatives})
        expect(f"rank {rank}: negatives per edge", counts, [16], "Return k columns. In this run, k is 16.")
        strangers = {node for row in negatives for node in row} - set(dst)
        hint = "Return destinations of the batch: dst[positions], with int64 positions of shape (B, k)."
        expect(f"rank {rank}: negatives that are not destinations of the batch", len(strangers), 0, hint)
        own = [row.count(v) - (dst.count(v) - 1) for v, row in zip(dst, negatives, strict=True)]
        hint = "Edge i must not get its own destination. Exclude position i from row i."
        expect(f"rank {rank}: edges that are their own negative", sum(n > 0 for n in own), 0, hint)
        twice = sum(row.count(node) > dst.count(node) for row in negatives for node in set(row))
        hint = "Sample k distinct positions without replacement."
        expect(f"rank {rank}: edges of the batch sampled twice for one edge", twice, 0, hint)
        sampled = {node for row in negatives for node in row}
        hint = "All edges share the same few destinations. Sample separately for each edge."
        expect(f"rank {rank}: more than 17 destinations are used", len(sampled) > 17, True, hint)
        expect(f"rank {rank}: only sources and destinations are embedded", report["seeds"] <= 2 * len(src), True)
