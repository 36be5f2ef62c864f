"""The checkers of lesson 8 know right from wrong; its programs reduce, reshuffle and count as they say."""

import ast
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl.graphbolt as gb
import numpy as np
import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from solution_support import NOTEBOOKS, assert_not_yet, solutions, verdict

from support import stack
from support.exercises import lesson_08
from support.plots import graphbolt
from support.processes import fork

sys.path.append(str(NOTEBOOKS / "scripts"))  # as `python scripts/bolt_train.py` has it
import bolt_loader


def function_of_the_program(name: str) -> Callable[..., float]:
    """A function of the program that the solution writes; its main part is not run."""
    cells = json.loads((NOTEBOOKS / "solutions" / "08_graphbolt_multi_gpu.ipynb").read_text())["cells"]
    (program,) = ["".join(cell["source"]) for cell in cells if "".join(cell["source"]).startswith("%%writefile")]
    (function,) = [node for node in ast.parse(program.partition("\n")[2]).body if getattr(node, "name", "") == name]
    names: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(compile(ast.Module([function], []), "solution 08", "exec"), names)
    return names[name]


ANSWERS = solutions("08")
degree_stage = ANSWERS.degree_stage
batches_per_rank = ANSWERS.batches_per_rank
mean_over_ranks = function_of_the_program("mean_over_ranks")

Stage = Callable[[gb.MiniBatch], gb.MiniBatch]


def all_degrees(graph: gb.FusedCSCSamplingGraph) -> Stage:
    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        degrees = graph.csc_indptr.diff()[: len(batch.input_nodes)].float()
        batch.node_features["feat"] = torch.cat([batch.node_features["feat"], degrees[:, None]], dim=1)
        return batch

    return stage


def put_first(graph: gb.FusedCSCSamplingGraph) -> Stage:
    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        batch = degree_stage(graph)(batch)
        batch.node_features["feat"] = batch.node_features["feat"].roll(1, dims=1)
        return batch

    return stage


def out_degrees(graph: gb.FusedCSCSamplingGraph) -> Stage:
    """Edges out of a node instead of into it."""

    def stage(batch: gb.MiniBatch) -> gb.MiniBatch:
        degrees = graph.indices.bincount(minlength=graph.total_num_nodes)[batch.input_nodes].float()
        batch.node_features["feat"] = torch.cat([batch.node_features["feat"], degrees[:, None]], dim=1)
        return batch

    return stage


CHECKS = (lesson_08.check_degree_stage, lesson_08.check_batches_per_rank)


@pytest.mark.parametrize(("check", "answer"), zip(CHECKS, (degree_stage, batches_per_rank), strict=True))
def test_right_answer(check, answer, capsys):
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


def test_a_stage_may_be_any_callable(capsys):
    class Stage(torch.nn.Module):
        def __init__(self, graph: gb.FusedCSCSamplingGraph) -> None:
            super().__init__()
            self.forward = degree_stage(graph)

    assert verdict(capsys, lesson_08.check_degree_stage, Stage) == "Exercise 1: correct\n"


def test_numbers_out_of_numpy_are_right(capsys):
    for kind in (np.array, torch.tensor, lambda counts: [np.int64(count) for count in counts]):
        said = verdict(capsys, lesson_08.check_batches_per_rank, lambda *case, kind=kind: kind(batches_per_rank(*case)))
        assert said == "Exercise 2: correct\n"


WRONG = {
    "stub": (0, lambda _g: None, "got       'NoneType'\n  expected  'function'"),
    "returns nothing": (0, lambda _g: lambda _b: None, "got       'NoneType'\n  expected  'MiniBatch'"),
    "unchanged": (0, lambda _g: lambda batch: batch, "shape of the new features"),
    "other side": (0, put_first, "the old columns"),
    "wrong nodes": (0, all_degrees, "the new column(.|\n)*indptr"),
    "edges out of a node": (0, out_degrees, "the new column"),
    "second stub": (1, lambda *_: None, r"got       None\n  expected  \[2, 2, 2, 2\]"),
    "items shared out": (1, lambda n, r, b, *_: [-(-n // r // b)] * r, r"got .*\n  expected  \[3, 3, 2, 2\]\n  hint"),
    "ignores options": (1, lambda n, r, b, *_: batches_per_rank(n, r, b, False, False), "drop_last=True"),
    "ignores drop_last": (1, lambda n, r, b, _, even: batches_per_rank(n, r, b, False, even), "drop_last=True"),
    "always even": (1, lambda n, r, b, last, _: batches_per_rank(n, r, b, last, True), "drop_uneven_inputs=False"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number, answer, said, capsys):
    assert_not_yet(verdict(capsys, CHECKS[number], answer), said)


def test_what_raises_is_not_yet_right(capsys):
    said = verdict(capsys, lesson_08.check_degree_stage, lambda graph: graph.no_such_thing)
    assert said.startswith("Exercise 1: not yet. Your code raised AttributeError")


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


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., Path]:
    """Runs two ranks with a reduction and gives the folder with what they wrote."""
    (tmp_path / "products").mkdir()
    np.save(tmp_path / "products" / "train-ids.npy", np.arange(5))
    np.save(tmp_path / "products" / "validation-ids.npy", np.arange(sum(COUNTS)))
    out = tmp_path / "exercise"
    out.mkdir()

    def run(mean: Callable[..., float] = mean_over_ranks, epochs: int = 4, stop_at: float = 0.9) -> Path:
        fork(report_of, 2, (str(out), mean, epochs, stop_at), backend="gloo", threads=1, timeout=60)
        return out

    return run


def test_right_early_stop(ran, capsys):
    assert verdict(capsys, lesson_08.check_early_stop, ran()) == "Exercise 3: correct\n"


def rank_1_waits_for_ever(out: Path) -> None:
    (out / "rank-1.json").unlink()


def one_epoch_more(out: Path) -> None:
    report = json.loads((out / "rank-1.json").read_text())
    (out / "rank-1.json").write_text(json.dumps({name: [*values, *values[-1:]] for name, values in report.items()}))


def same_share(out: Path) -> None:
    (out / "rank-1.json").write_text((out / "rank-0.json").read_text())


WRONG_STOPS = {
    "reduce: rank 1 is killed": ({}, rank_1_waits_for_ever, "came to their end(.|\n)*who knows"),
    "reduce, no stop": ({"mean": wrong_on_rank_1, "stop_at": 2.0}, None, "accuracy of rank 1, as of rank 0"),
    "one rank stops later": ({}, one_epoch_more, "epochs of rank 1, as of rank 0"),
    "mean of means": ({"mean": mean_of_means, "stop_at": 2.0}, None, "right answers among 9 nodes"),
    "without --stop_at": ({"stop_at": 2.0}, None, "accuracies of 0.9 or more before it"),
    "too few epochs": ({"epochs": 2}, None, "the last accuracy is 0.9 or more"),
}


@pytest.mark.parametrize(("how", "spoil", "said"), WRONG_STOPS.values(), ids=WRONG_STOPS.keys())
def test_wrong_early_stop(how, spoil, said, ran, capsys):
    out = ran(**how)
    if spoil:
        spoil(out)
    assert_not_yet(verdict(capsys, lesson_08.check_early_stop, out), said)


def test_nothing_run_and_another_program(ran, capsys):
    out = ran()
    said = verdict(capsys, lesson_08.check_early_stop, str(out / "none"))
    assert said.startswith("Exercise 3: not yet. none holds no result")
    same_share(out)
    assert "did not train on every node once" in verdict(capsys, lesson_08.check_early_stop, out)


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


def test_items_of_all_ranks_in_each_step():
    def steps(_rank: int, _world_size: int) -> list[int]:
        items = gb.ItemSet(torch.arange(19), names="seed_nodes")
        args = Namespace(batch_size=4, drop=False)
        return bolt_loader.items_per_step(items, args, torch.device("cpu"))

    assert fork(steps, 3, backend="gloo", threads=1, timeout=60) == [[12, 7]] * 3


def test_pictures():
    assert {"copy_to", "picks items", "feature store"} <= {text.get_text() for text in graphbolt.stages().axes[0].texts}
    panels = {"a": [[[0, 1]], [[2]]], "b": [[[0, 1]], []]}
    figure = graphbolt.replicas([[0, 1], [2]], panels)
    assert [ax.get_title() for ax in figure.axes] == ["a", "b"]
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["rank 0: 1", "rank 1: 0"]
    panels = graphbolt.classes_seen({"a": np.ones((2, 3)), "b": np.eye(2, 3)}).axes[:2]
    shares = [ax.images[0].get_array() for ax in panels]
    assert [array.tolist() for array in shares] == [[[0.5] * 3] * 2, [[1, 0, 0], [0, 1, 0]]]
    times = graphbolt.repeats({"epoch": {"x": [1.0, 2.0, 4.0], "y": [3.0, 3.0]}}).axes[0]
    assert [label.get_text() for label in times.get_yticklabels()] == ["x", "y"]
    assert [line.get_xdata().tolist() for line in times.lines] == [[1, 2, 4], [2, 2], [3, 3], [3, 3]]


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
