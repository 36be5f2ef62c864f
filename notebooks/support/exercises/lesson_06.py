"""Checkers of lesson 6, node classification with many processes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect, expect_type

SHARE_CASES = ((23, 4), (12, 4), (3, 4), (7, 1), (10, 3))


@exercise(1)
def check_contiguous_share(contiguous_share: Callable[[Tensor, int, int], Tensor]) -> None:
    """Exercise 1: ``contiguous_share(nids, rank, world_size)``, neighbouring ids, nothing left out."""
    for count, ranks in SHARE_CASES:
        nids = 100 + 3 * torch.arange(count)
        shares = [contiguous_share(nids, rank, ranks) for rank in range(ranks)]
        what = f"{count} ids, {ranks} ranks"
        for rank, share in enumerate(shares):
            expect_type(f"{what}: type of the share of rank {rank}", share, "Tensor")
        hint = "rank r begins where rank r - 1 ended, and the last rank ends with the last id"
        expect(f"{what}: the shares of rank 0, 1, ... one after the other", torch.cat(shares), nids, hint)
        sizes = [len(share) for share in shares]
        hint = "give the ids that remain to different ranks, one to each"
        expect(
            f"{what}: largest minus smallest of the sizes {sizes}",
            max(sizes) - min(sizes),
            int(count % ranks > 0),
            hint,
        )


FACTOR_CASES = (([128, 128], [1.0, 1.0]), ([3, 1], [1.5, 0.5]), ([4, 4, 2, 0], [1.6, 1.6, 0.8, 0.0]), ([5], [1.0]))


@exercise(2)
def check_loss_factors(loss_factors: Callable[[list[int]], Sequence[float]]) -> None:
    """Exercise 2: what each rank multiplies its mean loss with, so that DDP's average counts every seed node alike."""
    for sizes, expected in FACTOR_CASES:
        got = loss_factors(list(sizes))
        if isinstance(got, (list, tuple)):
            got = [round(float(factor), 6) for factor in got]
        average = sum(expected) / len(sizes)
        hint = f"DDP divides by the number of ranks, so the factors must have the mean {average:g}"
        expect(f"factors of ranks with {sizes} seed nodes", got, expected, hint)


def _graph(sources: int, targets: int, generator: torch.Generator) -> Any:
    """Source i has i + 1 outgoing edges, so no two neighbours of a node are equally popular."""
    import dgl

    src = torch.repeat_interleave(torch.arange(sources), torch.arange(1, sources + 1))
    dst = torch.cat([torch.randperm(targets, generator=generator)[: i + 1] for i in range(sources)])
    order = torch.randperm(len(src), generator=generator)
    return dgl.graph((src[order], sources + dst[order]), num_nodes=sources + targets)


@exercise(3)
def check_popular_frontier(popular_frontier: Callable[[Any, Tensor, int], Any]) -> None:
    """Exercise 3: a frontier with the ``fanout`` in-neighbours of each seed that have the most outgoing edges."""
    generator = torch.Generator().manual_seed(6)
    for sources, targets, fanout in ((4, 5, 2), (8, 8, 3), (6, 9, 1), (5, 6, 10)):
        graph = _graph(sources, targets, generator)
        seeds = sources + torch.randperm(targets, generator=generator)[:4]
        _check_frontier(popular_frontier(graph, seeds, fanout), graph, seeds, fanout)


def _check_frontier(got: Any, graph: Any, seeds: Tensor, fanout: int) -> None:
    what = f"of a frontier for the seeds {seeds.tolist()}, fan-out {fanout}"
    expect_type(f"type of what came back {what}", got, "DGLGraph")
    hint = "a frontier has all nodes of the graph, so that ids stay what they are"
    expect(f"number of nodes {what}", got.num_nodes(), graph.num_nodes(), hint)
    src, dst = got.edges()
    for seed in seeds.tolist():
        neighbours = graph.in_edges(seed)[0]
        best = neighbours[graph.out_degrees(neighbours).argsort(descending=True)][:fanout]
        hint = "the weight of an edge is the out-degree of its source; see dgl.sampling.select_topk"
        expect(f"neighbours of node {seed} {what}", sorted(src[dst == seed].tolist()), sorted(best.tolist()), hint)
    hint = "only edges that end at a seed take part"
    expect(
        f"nodes that receive {what}",
        sorted(set(dst.tolist())),
        sorted(s for s in seeds.tolist() if graph.in_degrees(s)),
        hint,
    )
