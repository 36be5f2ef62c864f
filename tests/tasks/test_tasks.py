"""A task and a data set that do not suit each other; the names of scores; a task that somebody adds."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fault_support import run_program
from rank_functions import share_that_is_right

from support.processes import fix_openmp, fork
from tutorial_lib import tasks
from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_single
from tutorial_lib.partition import partition_dataset
from tutorial_lib.tasks import TASKS, check_task, link, task_named
from tutorial_lib.tasks.inference import from_graph, layerwise_inference
from tutorial_lib.tasks.link import LinkOptions
from tutorial_lib.tasks.shard import LocalShard
from tutorial_lib.tools.cli import main
from tutorial_lib.trainer.config import TrainConfig

PROGRAMS = Path(__file__).parents[1] / "programs"
SMALL = TrainConfig(epochs=3, fanouts=(3, 3), batch_size=50, hidden_size=16, learning_rate=0.02)


@pytest.mark.parametrize("task", ["node", "link", "embedding"])
def test_several_types_of_nodes_are_refused(task, data_root, tmp_path, capsys):
    arguments = ["train", "--task", task, "--dataset", "synthetic-academic", "--scale", "0.005", "--emulate", "2"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--root", str(data_root), "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"--task {task} needs a graph with one type of nodes, this one has several" in error
    assert "Take --task hetero" in error
    assert not (tmp_path / "run").exists()


def test_unknown_task():
    with pytest.raises(InputError, match="no task 'nodes'"):
        check_task("nodes")


def test_every_task_has_its_module():
    specs = [task_named(name) for name in TASKS]
    assert [spec.name for spec in specs] == list(TASKS)
    assert [spec.score_name for spec in specs] == ["accuracy", "MRR", "accuracy", "accuracy"]
    assert [spec.uses_features for spec in specs] == [True, True, False, True]
    assert [spec.uses_labels for spec in specs] == [True, False, True, True]


@pytest.mark.parametrize(("task", "score"), [("link", "MRR"), ("node", "accuracy")])
def test_only_an_accuracy_is_called_one(task, score, data_root, tmp_path, monkeypatch):
    """The MRR of links once stood in result.json as val_accuracy."""
    monkeypatch.setattr(link, "DEFAULTS", LinkOptions(epoch_edges=1000, validation_edges=200, eval_negatives=20))
    config = TrainConfig(task=task, epochs=1, fanouts=(3,), batch_size=5000, hidden_size=8)
    source = DataSource("synthetic-products", scale=0.002, root=data_root)
    returned = run_single(source, config, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {key: result[key] for key in ("score", "val_score")} == {
        key: returned[key] for key in ("score", "val_score")
    }
    events = {json.loads(line)["kind"]: json.loads(line) for line in (tmp_path / "run" / "events.jsonl").open()}
    assert result["score"] == events["epoch"]["score"] == score
    for found in (result, result["epochs"][0], events["epoch"]):
        assert 0 < found["val_score"] < 1
        assert found["val_accuracy"] == (found["val_score"] if score == "accuracy" else None)
    assert result["test_accuracy"] == (result["test_score"] if score == "accuracy" else None)


@pytest.fixture
def with_degree(monkeypatch):
    """tests/programs/degree_task.py as a file of tutorial_lib/tasks, and its name in TASKS."""
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.setitem(sys.modules, "tutorial_lib.tasks.degree", importlib.import_module("degree_task"))
    monkeypatch.setattr(tasks, "TASKS", (*TASKS, "degree"))


def check_degrees(out: Path, dataset: Dataset, losses: list[float]) -> None:
    assert len(losses) == SMALL.epochs
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]
    degrees, test = dataset.graph.in_degrees().numpy(), dataset.graph.ndata["test_mask"].numpy()
    predictions = np.load(out / "predictions.npy")
    assert predictions.shape == degrees.shape
    off = np.abs(np.log1p(predictions) - np.log1p(degrees))[test]
    found = json.loads((out / "score.json").read_text())
    assert (off < np.log(2)).mean() == pytest.approx(found, abs=0.05)  # the predictions are rounded
    assert found > 0.3


def test_a_new_task_is_one_file_and_one_name(with_degree, data_root, tmp_path):
    source = DataSource("synthetic-products", scale=0.002, root=data_root)
    config = TrainConfig.from_dict({**SMALL.to_dict(), "task": "degree"})
    result = run_single(source, config, tmp_path / "run")
    assert (result["score"], result["test_accuracy"]) == ("share within a factor of two", None)
    (tmp_path / "run" / "score.json").write_text(json.dumps(result["test_score"]))
    check_degrees(tmp_path / "run", source.load(), [epoch["loss"] for epoch in result["epochs"]])


@pytest.mark.cluster
def test_a_new_task_on_two_machines(emulation, nothing_left, small_dataset, tmp_path):
    partition = partition_dataset(small_dataset, 2, tmp_path / "parts")
    script = [str(PROGRAMS / "degree_trainer.py"), str(partition.folder), str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    events = run_program(partition, tmp_path, *script, json.dumps(SMALL.to_dict()))
    (evaluation,) = (event for event in events if event["kind"] == "evaluation")
    (tmp_path / "run" / "score.json").write_text(json.dumps(evaluation["test_score"]))
    losses = [event["loss"] for event in events if event["kind"] == "epoch"]
    check_degrees(tmp_path / "run", small_dataset, losses)


def test_accuracy_is_of_the_counts_of_all_ranks():
    """D7. Masks are uint8 as in a DistGraph, and the accuracy uses the counts of all ranks."""
    assert fork(fix_openmp(share_that_is_right), 2, backend="gloo", threads=1) == [(5 / 8, 1 / 2)] * 2


def test_a_layer_waits_for_the_rows_of_the_others(small_dataset):
    """This process computes half of the nodes. The other half is there when all have waited, and not before."""
    shard, n = LocalShard(small_dataset), small_dataset.graph.num_nodes()
    model, source = SMALL.model(small_dataset.num_features, 5).eval(), from_graph(shard)
    stores: list[torch.Tensor] = []
    shard.new_store = lambda _depth, width, _ntype: stores.append(torch.full((n, width), torch.nan)) or stores[-1]
    alone = layerwise_inference(model, source, shard.data["feat"], shard, 500)
    whole, stores = stores, []

    def wait_for_all() -> None:
        assert stores[-1][: n // 2].isfinite().all()  # ours are all there
        stores[-1][n // 2 :] = whole[len(stores) - 1][n // 2 :]

    shard.barrier, shard.own = wait_for_all, lambda _ntype: small_dataset.graph.nodes()[: n // 2]
    found = layerwise_inference(model, source, shard.data["feat"], shard, 500)
    assert len(stores) == 2
    assert torch.allclose(found, alone, atol=1e-5)
