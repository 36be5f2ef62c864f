"""Checkers of lesson 8, GraphBolt on several ranks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.exercises import Unfinished, exercise, expect, plain

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
    found = []
    options = {"distributed": True, "drop_uneven_inputs": drop_uneven, "world_size": ranks}
    for rank in range(ranks):
        options |= {"rank": rank, "rng": np.random.default_rng(0)}
        batcher = ItemShufflerAndBatcher(items, False, batch_size, drop_last, total, **options)
        found.append(sum(1 for _batch in batcher))
    return found


@exercise(2)
def check_batches_per_rank(batches_per_rank: Callable[[int, int, int, bool, bool], list[int]]) -> None:
    """Exercise 2: compare the computed number of batches of each rank with GraphBolt's."""
    for total, ranks, batch_size, drop_last, drop_uneven in BATCH_CASES:
        expected = batches_of_replicas(total, ranks, batch_size, drop_last, drop_uneven)
        got = plain(batches_per_rank(total, ranks, batch_size, drop_last, drop_uneven))
        got = [plain(count) for count in got] if isinstance(got, (list, tuple)) else got
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


@exercise(1)
def check_degree_stage(degree_stage: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Exercise 1: a custom stage appends a column to the features."""
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


RANKS, ENOUGH = 2, 0.9


@exercise(3)
def check_early_stop(out: str | Path) -> None:
    """Exercise 3: check the results of the learner's program in ``out``. The data set is beside ``out``."""
    out = Path(out)
    files = [out / f"rank-{rank}.json" for rank in range(RANKS)]
    if not any(file.exists() for file in files):
        raise Unfinished(f"{out.name} holds no result: write the function, then run the program")
    there = [file.exists() for file in files]
    expect("ranks that came to their end", there, [True] * RANKS, "the others waited for ever: who knows the accuracy?")
    reports = [json.loads(file.read_text()) for file in files]
    lengths = [len(report["accuracy"]) for report in reports]
    expect("epochs of rank 1, as of rank 0", lengths[1], lengths[0], "both must stop in the same epoch")
    expect("accuracy of rank 1, as of rank 0", reports[1]["accuracy"], reports[0]["accuracy"], "a sum for every rank")
    expect("loss of rank 1, as of rank 0", reports[1]["loss"], reports[0]["loss"], "a sum for every rank")
    _check_what_was_trained(reports, out.parent / "products")
    *before, last = reports[0]["accuracy"]
    expect(f"the last accuracy is {ENOUGH} or more", last >= ENOUGH, True, f"run it with --stop_at {ENOUGH}")
    expect(f"accuracies of {ENOUGH} or more before it", sum(a >= ENOUGH for a in before), 0, "--stop_at stops there")


def _check_what_was_trained(reports: list[dict[str, list[Any]]], folder: Path) -> None:
    """Each epoch trains on all training nodes, and each accuracy is a fraction of the number of nodes."""
    train = sorted(np.load(folder / "train-ids.npy").tolist())
    for seeds in zip(*(report["seeds"] for report in reports), strict=True):
        if sorted(node for of_rank in seeds for node in of_rank) != train:
            raise Unfinished("the ranks together did not train on every node once: is this the lesson's program?")
    asked = len(np.load(folder / "validation-ids.npy"))
    for accuracy in reports[0]["accuracy"]:
        right = accuracy * asked
        if abs(right - round(right)) > 0.01:
            expect(
                f"right answers among {asked} nodes, by an accuracy of {accuracy:.4f}",
                round(right, 2),
                round(right),
                "a mean of the ranks' means? They have different numbers of nodes.",
            )
            raise Unfinished("the accuracy is no number of right answers by the number of nodes")
