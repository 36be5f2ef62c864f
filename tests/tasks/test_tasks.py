"""Unsuitable data sets, names of scores, and a new task."""

import json

import numpy as np
import pytest
import torch
from commands import ROOT, read_events
from programs.train_runs import run_trainings

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import summary_rows
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_single
from tutorial_lib.partition import partition_dataset
from tutorial_lib.tasks import TASKS, TaskEntry, check_data, get_task_class, link
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.task import LocalShard
from tutorial_lib.trainer.config import TrainConfig


def test_typed_graph_is_refused_before_the_start(data_root, tmp_path, run_here):
    data = ["--dataset", "synthetic-academic", "--scale", "0.005", "--root", str(data_root)]
    done = run_here("train", "--task", "link", *data, "--emulate", "2", "--out", "run")
    assert done.returncode == 2
    assert "synthetic-academic: --task link needs a graph with one type of nodes" in done.stderr
    assert "Tasks for this data: hetero. " in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("features", "labels", "masks", "typed", "suited"),
    [
        (True, True, True, False, {"node", "link", "embedding", "degree"}),
        (True, False, True, False, {"link", "degree"}),
        (True, False, False, False, {"link"}),
        (False, True, True, False, {"embedding"}),
        (False, True, True, True, {"hetero"}),
    ],
)
def test_tasks_refuse_unsuitable_data(features, labels, masks, typed, suited, monkeypatch):
    monkeypatch.setitem(TASKS, "degree", TaskEntry("degree", "DegreeTask", labels=False, classes=False))
    facts = {"name": "x", "num_features": 5 * features, "num_classes": 3 * labels, "masks": masks}
    facts |= {"target": "paper"} if typed else {}
    for name in TASKS:
        if name in suited:
            check_data(name, facts)
            continue
        with pytest.raises(InputError, match=f"x: --task {name} needs (a graph|node|labels|train_mask, val)") as caught:
            check_data(name, facts)
        others = ", ".join(task for task in TASKS if task in suited)
        assert caught.value.remedy.startswith(f"Tasks for this data: {others}. A column split in nodes.csv")


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_documented(name):
    assert get_task_class(name).name == name
    assert f"- `{name}` " in (ROOT / "docs" / "commands.md").read_text()
    assert name in (TrainConfig.__doc__ or "")


@pytest.mark.parametrize("name", ["node", "embedding"])
def test_float_labels_are_unchanged(name, small_dataset, monkeypatch):
    monkeypatch.setattr(NodeTask, "get_labels", lambda task: torch.rand(task.shard.graph.num_nodes()))
    task = get_task_class(name)(LocalShard(small_dataset), TrainConfig(task=name, fanouts=(3,), hidden_size=8))
    _, batch = next(task.train_loader.batches(0))
    assert torch.equal(task.inputs(batch)[-1], task.labels[batch.seeds])


@pytest.mark.parametrize(("task", "score"), [("link", "MRR"), ("node", "accuracy")])
def test_scores_have_correct_names(task, score, data_root, tmp_path, monkeypatch):
    """The MRR of links must not be named val_accuracy."""
    for name, value in {"epoch_edges": 1000, "val_edges": 200, "eval_negatives": 20}.items():
        monkeypatch.setattr(link.LinkTask, name, value)
    config = TrainConfig(task=task, epochs=1, fanouts=(3,), batch_size=5000, hidden_size=8)
    result = run_single(DataSource("synthetic-products", scale=0.002, root=data_root), config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["score"] == result["score"] == score
    (event,) = (event for event in read_events(tmp_path / "run") if event["kind"] == "epoch")
    for found in (result, result["epochs"][0], event):
        assert 0 < found["val_score"] < 1
        assert found["val_accuracy"] == (found["val_score"] if score == "accuracy" else None)
    assert result["test_accuracy"] == (result["test_score"] if score == "accuracy" else None)
    rows = summary_rows(result)
    assert rows[f"test {score}"] == f"{result['test_score']:.4f}"
    assert rows["bytes sent"] == "nothing"


@pytest.mark.cluster
def test_a_new_task_on_two_machines(emulation, nothing_left, small_dataset, tmp_path):
    """The task is tests/programs/degree_task.py, copied to tutorial_lib/tasks and added to TASKS."""
    config = TrainConfig(task="degree", epochs=3, fanouts=(3, 3), batch_size=50, hidden_size=16, learning_rate=0.02)
    partition = partition_dataset(small_dataset, 2, tmp_path / "parts")
    events = run_trainings(partition, tmp_path / "runs", [config])
    first, _, last = (event["loss"] for event in events if event["kind"] == "epoch")
    assert last < 0.5 * first
    (score,) = (event["test_score"] for event in events if event["kind"] == "evaluation")
    degrees, test = small_dataset.graph.in_degrees().numpy(), small_dataset.graph.ndata["test_mask"].numpy()
    predictions = np.load(tmp_path / "runs" / "0" / "predictions.npy")
    off = np.abs(np.log1p(predictions) - np.log1p(degrees))[test]
    assert (off < np.log(2)).mean() == pytest.approx(score, abs=0.05)  # the predictions are rounded
    assert score > 0.3
