"""Checkers of lesson 8, GraphBolt on several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from support.exercises import Unfinished, exercise, expect

# items, ranks, batch size, drop_last, drop_uneven_inputs
BATCH_CASES = (
    (15, 4, 2, False, False),
    (19, 4, 2, False, False),
    (19, 4, 2, True, False),
    (19, 4, 2, False, True),
    (15, 4, 2, True, True),
    (5, 3, 4, False, False),
    (5, 3, 4, False, True),
    (100, 2, 64, True, True),
    (1966, 2, 64, False, False),
)


def batches_of_replicas(total: int, ranks: int, batch_size: int, drop_last: bool, drop_uneven: bool) -> list[int]:
    """What GraphBolt does, without starting any rank: the number of batches of each."""
    import numpy as np
    from dgl.graphbolt import ItemSet
    from dgl.graphbolt.item_sampler import ItemShufflerAndBatcher

    items = ItemSet(torch.arange(total), names="seed_nodes")
    found = []
    options = {"distributed": True, "drop_uneven_inputs": drop_uneven, "world_size": ranks}
    for rank in range(ranks):
        options |= {"rank": rank, "rng": np.random.default_rng(0)}
        batcher = ItemShufflerAndBatcher(items, False, batch_size, drop_last, total, **options)
        found.append(sum(1 for _batch in batcher))
    return found


@exercise(1)
def check_batches_per_rank(batches_per_rank: Callable[[int, int, int, bool, bool], list[int]]) -> None:
    """Exercise 1: the number of batches of each rank, against what GraphBolt does."""
    for total, ranks, batch_size, drop_last, drop_uneven in BATCH_CASES:
        expected = batches_of_replicas(total, ranks, batch_size, drop_last, drop_uneven)
        got = batches_per_rank(total, ranks, batch_size, drop_last, drop_uneven)
        what = f"{total} items, {ranks} ranks, batch size {batch_size}"
        options = f"drop_last={drop_last}, drop_uneven_inputs={drop_uneven}"
        expect(f"{what}, {options}", got, expected, _batches_hint(drop_last, drop_uneven))


def _batches_hint(drop_last: bool, drop_uneven: bool) -> str:
    if drop_last and drop_uneven:
        return "only rounds in which every rank has a full batch count"
    if drop_uneven:
        return "every rank gets as many as the last rank, which has the fewest; an incomplete batch counts"
    if drop_last:
        return "share out the batches first; then the rank with the incomplete one loses it"
    return "batches, not items, are shared out: the first ranks get one more"


NAN = float("nan")
MEAN_CASES = (
    ([(2.0, 10), (1.0, 30)], 1.25),
    ([(0.5, 3)], 0.5),
    ([(0.75, 128), (0.25, 72)], 0.57),
    ([(1.5, 64), (NAN, 0)], 1.5),
    ([(NAN, 0), (NAN, 0)], NAN),
)


@exercise(2)
def check_overall_mean(overall_mean: Callable[[Sequence[tuple[float, int]]], float]) -> None:
    """Exercise 2: the mean over all items from the ranks' means and counts."""
    for parts, expected in MEAN_CASES:
        got = overall_mean(list(parts))
        empty = any(count == 0 for _mean, count in parts)
        hint = "NaN times 0 is NaN: a rank without items must not take part" if empty else "weight by the counts"
        what = f"(mean, count) of the ranks {parts}"
        same = isinstance(got, float) and (
            math.isclose(got, expected, rel_tol=1e-9) or (math.isnan(got) and math.isnan(expected))
        )
        if not same:
            expect(what, got, expected, "no item at all: the mean is NaN" if math.isnan(expected) else hint)
            raise Unfinished(f"{what}\n  got       {got!r}\n  expected  {expected!r}")


@exercise(3)
def check_degree_stage(degree_stage: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Exercise 3: a stage of one's own, which appends a column to the features."""
    for seed, nodes, width in ((0, 9, 2), (1, 20, 4)):
        _check_stage(degree_stage, seed, nodes, width)


def _check_stage(degree_stage: Callable[[Any], Callable[[Any], Any]], seed: int, nodes: int, width: int) -> None:
    import dgl.graphbolt as gb

    generator = torch.Generator().manual_seed(seed)
    degrees = torch.randint(0, 6, (nodes,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = torch.randint(0, nodes, (int(indptr[-1]),), generator=generator)
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    stage = degree_stage(graph)
    if not callable(stage):
        expect(
            "type of what degree_stage returns", type(stage).__name__, "function", "return a function of a MiniBatch"
        )
    input_nodes = torch.randperm(nodes, generator=generator)[: nodes // 2]
    feat = torch.rand(len(input_nodes), width, generator=generator)
    batch = stage(gb.MiniBatch(input_nodes=input_nodes, node_features={"feat": feat.clone()}))
    what = f"of a batch with {len(input_nodes)} input nodes and {width} features"
    expect(f"type of what the stage returns, {what}", type(batch).__name__, "MiniBatch", "a stage hands on the batch")
    got = batch.node_features["feat"]
    expect(f"shape of the new features, {what}", tuple(got.shape), (len(input_nodes), width + 1))
    expect(f"the old columns, {what}", got[:, :width], feat, "the new column is the last one; float32")
    hint = "the edges into node v are indices[indptr[v]:indptr[v + 1]]; take those of batch.input_nodes"
    expect(f"the new column, {what}", got[:, width], degrees[input_nodes].float(), hint)
