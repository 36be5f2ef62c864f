"""The checkers of lesson 8 know right from wrong; its programs reduce and reshuffle as they say."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl.graphbolt as gb
import numpy as np
import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from program_support import written
from solution_support import NOTEBOOKS, answer_tests, solutions

from support import stack
from support.exercises import lesson_08
from support.processes import fork

sys.path.append(str(NOTEBOOKS / "scripts"))  # as `python scripts/bolt_train.py` has it
import bolt_loader

PROGRAM: dict[str, Any] = {"__name__": "exercise_08_3"}
exec(written("08", "exercise_08_3.py"), PROGRAM)
ANSWERS = solutions("08")
degree_stage = ANSWERS.degree_stage
batches_per_rank = ANSWERS.batches_per_rank
mean_over_ranks = PROGRAM["mean_over_ranks"]

Stage = Callable[[gb.MiniBatch], gb.MiniBatch]


def with_column(graph: gb.FusedCSCSamplingGraph, degrees_of: Callable[[Any, torch.Tensor], torch.Tensor]) -> Stage:
    """A stage that appends other degrees of the input nodes."""

    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        degrees = degrees_of(graph, batch.input_nodes).float()
        batch.node_features["feat"] = torch.cat([batch.node_features["feat"], degrees[:, None]], dim=1)
        return batch

    return stage


def all_degrees(graph: gb.FusedCSCSamplingGraph) -> Stage:
    return with_column(graph, lambda g, ids: g.csc_indptr.diff()[: len(ids)])


def out_degrees(graph: gb.FusedCSCSamplingGraph) -> Stage:
    """Edges out of a node instead of into it."""
    return with_column(graph, lambda g, ids: g.indices.bincount(minlength=g.total_num_nodes)[ids])


def put_first(graph: gb.FusedCSCSamplingGraph) -> Stage:
    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        batch = degree_stage(graph)(batch)
        batch.node_features["feat"] = batch.node_features["feat"].roll(1, dims=1)
        return batch

    return stage


class Module(torch.nn.Module):
    """A stage may be any callable."""

    def __init__(self, graph: gb.FusedCSCSamplingGraph) -> None:
        super().__init__()
        self.forward = degree_stage(graph)


STAGES = {
    "stub": (lambda _g: None, "got       'NoneType'\n  expected  'function'"),
    "returns nothing": (lambda _g: lambda _b: None, "got       'NoneType'\n  expected  'MiniBatch'"),
    "unchanged": (lambda _g: lambda batch: batch, "shape of the new features"),
    "other side": (put_first, "the old columns"),
    "wrong nodes": (all_degrees, "the new column(.|\n)*indptr"),
    "edges out of a node": (out_degrees, "the new column"),
    "raises": (lambda graph: graph.no_such_thing, "Your code raised AttributeError"),
}
test_right_stage, test_wrong_stage = answer_tests(lesson_08.check_degree_stage, [degree_stage, Module], STAGES)

COUNTS_OF_RANKS = {
    "second stub": (lambda *_: None, r"got       None\n  expected  \[2, 2, 2, 2\]"),
    "items shared out": (lambda n, r, b, *_: [-(-n // r // b)] * r, r"got .*\n  expected  \[3, 3, 2, 2\]\n  hint"),
    "ignores options": (lambda n, r, b, *_: batches_per_rank(n, r, b, False, False), "drop_last=True"),
    "ignores drop_last": (lambda n, r, b, _, even: batches_per_rank(n, r, b, False, even), "drop_last=True"),
    "always even": (lambda n, r, b, last, _: batches_per_rank(n, r, b, last, True), "drop_uneven_inputs=False"),
}
KINDS = [list, np.array, torch.tensor, lambda counts: [np.int64(count) for count in counts]]
test_right_counts, test_wrong_counts = answer_tests(
    lesson_08.check_batches_per_rank,
    [lambda *case, kind=kind: kind(batches_per_rank(*case)) for kind in KINDS],
    COUNTS_OF_RANKS,
)


def test_the_checker_agrees_with_the_distributed_sampler():
    settings = [{"drop_last": last, "drop_uneven_inputs": even} for last in (False, True) for even in (False, True)]

    def count(_rank: int, _world_size: int) -> list[int]:
        items = gb.ItemSet(torch.arange(19), names="seed_nodes")
        return [len(list(gb.DistributedItemSampler(items, 2, **options))) for options in settings]

    ranks = fork(count, 3, backend="gloo", threads=1, timeout=60)
    for k, options in enumerate(settings):
        assert [found[k] for found in ranks] == lesson_08.batches_of_replicas(19, 3, 2, *options.values())


# Exercise 3. Two ranks with 6 and 3 of 9 validation nodes; the right answers of each rank in each epoch.
RIGHT = [(1, 0), (4, 2), (6, 3), (6, 3)]
COUNTS = (6, 3)


def mean_of_means(total: torch.Tensor, weight: int, dst: int = 0) -> float:
    mean = total / weight
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


def wrong_on_rank_1(total: torch.Tensor, weight: int, dst: int = 0) -> float:
    value = mean_over_ranks(total, weight, dst)
    return value if dist.get_rank() == dst else (total / weight).item()


def report_of(rank: int, _world_size: int, out: str, mean: Callable[..., float], epochs: int, stop_at: float) -> None:
    """What bolt_train writes, with made-up right answers and a real reduction."""
    report: dict[str, list[Any]] = {"loss": [], "accuracy": [], "seconds": [], "seeds": []}
    for right in RIGHT[:epochs]:
        accuracy = mean(torch.tensor(float(right[rank])), COUNTS[rank])
        report["accuracy"].append(accuracy)
        report["loss"].append(mean(torch.tensor(2.0 + rank), COUNTS[rank]))
        report["seeds"].append([0, 2, 4] if rank == 0 else [1, 3])
        if accuracy >= stop_at:
            break
    Path(out, f"rank-{rank}.json").write_text(json.dumps(report))


def another_share(out: Path) -> None:
    (out / "rank-1.json").write_text((out / "rank-0.json").read_text())


def rank_1_waits_for_ever(out: Path) -> None:
    (out / "rank-1.json").unlink()


def one_epoch_more(out: Path) -> None:
    report = json.loads((out / "rank-1.json").read_text())
    (out / "rank-1.json").write_text(json.dumps({name: [*values, *values[-1:]] for name, values in report.items()}))


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[tuple[Any, ...]], tuple[Path]]:
    """Runs two ranks with (reduction, epochs, accuracy to stop at), and changes what they wrote."""
    (tmp_path / "products").mkdir()
    np.save(tmp_path / "products" / "train-ids.npy", np.arange(5))
    np.save(tmp_path / "products" / "validation-ids.npy", np.arange(sum(COUNTS)))
    out = tmp_path / "exercise"
    out.mkdir()

    def run(answer: tuple[Any, ...]) -> tuple[Path]:
        *settings, spoil = answer
        fork(report_of, 2, (str(out), *settings), backend="gloo", threads=1, timeout=60)
        if spoil:
            spoil(out)
        return (out,)

    return run


RAN = (mean_over_ranks, 4, 0.9)
WRONG_STOPS = {
    "reduce: rank 1 is killed": ((*RAN, rank_1_waits_for_ever), "came to their end(.|\n)*who knows"),
    "reduce, no stop": ((wrong_on_rank_1, 4, 2.0, None), "accuracy of rank 1, as of rank 0"),
    "one rank stops later": ((*RAN, one_epoch_more), "epochs of rank 1, as of rank 0"),
    "mean of means": ((mean_of_means, 4, 2.0, None), "right answers among 9 nodes"),
    "without --stop_at": ((mean_over_ranks, 4, 2.0, None), "accuracies of 0.9 or more before it"),
    "too few epochs": ((mean_over_ranks, 2, 0.9, None), "the last accuracy is 0.9 or more"),
    "another program": ((*RAN, another_share), "did not train on every node once"),
    "nothing run": ((*RAN, shutil.rmtree), "exercise holds no result"),
}
test_right_early_stop, test_wrong_early_stop = answer_tests(
    lesson_08.check_early_stop, [(*RAN, None)], WRONG_STOPS, "ran"
)


def test_reshuffled_keeps_items_together():
    items = gb.ItemSet((torch.arange(50), torch.arange(50) * 2), names=("seed_nodes", "labels"))
    first, again, other = (bolt_loader.reshuffled(items, seed) for seed in (1, 1, 2))
    ids, labels = first[:]
    assert first.names == items.names
    assert torch.equal(labels, ids * 2)
    assert torch.equal(ids.sort().values, torch.arange(50))
    assert torch.equal(ids, again[:][0])
    assert not torch.equal(ids, other[:][0])


def test_a_rank_without_items_counts_nothing():
    accuracy, count = bolt_loader.evaluate(torch.nn.Linear(1, 1), [], 3, torch.device("cpu"))
    assert (accuracy.item(), count) == (0.0, 0)
    means, counts = [0.5, 1.0, 0.0], [6, 2, 0]

    def reduce_own(rank: int, _world_size: int) -> tuple[float, float]:
        total = torch.tensor(means[rank] * counts[rank])
        return bolt_loader.weighted_reduce(total, counts[rank]), mean_over_ranks(total, counts[rank])

    found = fork(reduce_own, 3, backend="gloo", threads=1, timeout=60)
    assert found[0][0] == pytest.approx(5 / 8)
    assert [on_all for _, on_all in found] == [pytest.approx(5 / 8)] * 3


CELLS = [
    "from support.stack import skip_without_graphbolt\nskip_without_graphbolt()",
    "print('ran')",
    "%%writefile x\ny",
]


@pytest.mark.parametrize("problem", [None, "this is torch 2.13.0"])
def test_without_graphbolt_the_cells_below_are_skipped(problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stack, "graphbolt_problem", lambda: problem)
    shell = InteractiveShell()
    monkeypatch.setattr(stack, "get_ipython", lambda: shell)
    for cell in [*CELLS, CELLS[0], CELLS[1]]:  # also if somebody runs the first cell again
        shell.run_cell(cell).raise_error()
    printed = capsys.readouterr().out.splitlines()
    assert Path("x").exists() is (problem is None)
    if problem is None:
        assert printed == ["ran", "Writing x", "ran"]
    else:
        sentence = f"The rest of this notebook is skipped because it needs GraphBolt, and {problem}."
        skipped = "Skipped: this cell needs GraphBolt."
        assert printed == [sentence, skipped, skipped, sentence, skipped]
