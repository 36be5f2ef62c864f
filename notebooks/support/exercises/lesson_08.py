"""Checker of lesson 08, GraphBolt on several ranks."""

from collections.abc import Callable

import torch

from support.exercises import exercise, expect, plain

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
    """Return the number of batches of each rank in GraphBolt, without starting ranks."""
    import numpy as np
    from dgl.graphbolt import ItemSet
    from dgl.graphbolt.item_sampler import ItemShufflerAndBatcher

    items = ItemSet(torch.arange(total), names="seed_nodes")
    counts = []
    options = {"distributed": True, "drop_uneven_inputs": drop_uneven, "world_size": ranks}
    for rank in range(ranks):
        options |= {"rank": rank, "rng": np.random.default_rng(0)}
        batcher = ItemShufflerAndBatcher(items, False, batch_size, drop_last, total, **options)
        counts.append(sum(1 for _batch in batcher))
    return counts


@exercise(1)
def check_batches_per_rank(batches_per_rank: Callable[[int, int, int, bool, bool], list[int]]) -> None:
    """Exercise 1: compare the computed number of batches of each rank with GraphBolt's."""
    for total, ranks, batch_size, drop_last, drop_uneven in BATCH_CASES:
        expected = batches_of_replicas(total, ranks, batch_size, drop_last, drop_uneven)
        got = plain(batches_per_rank(total, ranks, batch_size, drop_last, drop_uneven))
        got = [plain(count) for count in got] if isinstance(got, (list, tuple)) else got
        what = f"{total} items, {ranks} ranks, batch size {batch_size}"
        options = f"drop_last={drop_last}, drop_uneven_inputs={drop_uneven}"
        expect(f"{what}, {options}", got, expected, _batches_hint(drop_last, drop_uneven))


def _batches_hint(drop_last: bool, drop_uneven: bool) -> str:
    if drop_last and drop_uneven:
        return "Count only the rounds in which every rank has a full batch."
    if drop_uneven:
        return "Every rank gets as many batches as the last rank, which has the fewest. Count an incomplete batch."
    if drop_last:
        return "Distribute the batches first. Then the rank with the incomplete batch drops it."
    return "The sampler distributes batches, not items, and the first ranks get one more."
