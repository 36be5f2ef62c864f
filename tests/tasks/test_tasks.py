"""A task and a data set that do not suit each other; the names of scores; a task that somebody adds."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from fault_support import run_program

from tutorial_lib import tasks
from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import summary_rows
from tutorial_lib.job.source import DataSource
from tutorial_lib.job.train import run_single
from tutorial_lib.partition import partition_dataset
from tutorial_lib.tasks import TASKS, check_data, link, task_named
from tutorial_lib.tools.cli import main
from tutorial_lib.trainer.config import TrainConfig

PROGRAMS = Path(__file__).parents[1] / "programs"
SMALL = TrainConfig(epochs=3, fanouts=(3, 3), batch_size=50, hidden_size=16, learning_rate=0.02)


def test_several_types_of_nodes_are_refused_before_the_start(data_root, tmp_path, capsys):
    arguments = ["train", "--task", "link", "--dataset", "synthetic-academic", "--scale", "0.005", "--emulate", "2"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--root", str(data_root), "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "synthetic-academic: --task link needs a graph with one type of nodes" in error
    assert "--task hetero takes several types" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("features", "labels", "typed", "suited"),
    [
        (True, True, False, {"node", "link", "embedding"}),
        (True, False, False, {"link"}),
        (False, True, False, {"embedding"}),
        (False, False, False, set()),
        (True, True, True, {"hetero"}),
        (False, True, True, {"hetero"}),
    ],
)
def test_each_task_refuses_data_that_does_not_suit_it(features, labels, typed, suited):
    facts = {"name": "x", "num_features": 5 * features, "num_classes": 3 * labels}
    facts |= {"target": "paper"} if typed else {}
    for name in TASKS:
        if name in suited:
            check_data(name, facts)
            continue
        with pytest.raises(InputError, match=f"x: --task {name} needs (a graph|node features|labels)") as caught:
            check_data(name, facts)
        assert "embedding needs no features, and link needs no labels" in caught.value.remedy


def test_every_task_has_its_module():
    assert next(iter(TASKS)) == TrainConfig().task
    assert [task_named(name).name for name in TASKS] == list(TASKS)
    with pytest.raises(InputError, match="no task 'nodes'"):
        task_named("nodes")


@pytest.mark.parametrize(("task", "score"), [("link", "MRR"), ("node", "accuracy")])
def test_only_an_accuracy_is_called_one(task, score, data_root, tmp_path, monkeypatch):
    """The MRR of links once stood in result.json as val_accuracy."""
    for name, value in {"epoch_edges": 1000, "validation_edges": 200, "eval_negatives": 20}.items():
        monkeypatch.setattr(link.LinkTask, name, value)
    config = TrainConfig(task=task, epochs=1, fanouts=(3,), batch_size=5000, hidden_size=8)
    returned = run_single(DataSource("synthetic-products", scale=0.002, root=data_root), config, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["score"], result["val_score"]) == (returned["score"], returned["val_score"])
    events = {json.loads(line)["kind"]: json.loads(line) for line in (tmp_path / "run" / "events.jsonl").open()}
    assert result["score"] == events["epoch"]["score"] == score
    for found in (result, result["epochs"][0], events["epoch"]):
        assert 0 < found["val_score"] < 1
        assert found["val_accuracy"] == (found["val_score"] if score == "accuracy" else None)
    assert result["test_accuracy"] == (result["test_score"] if score == "accuracy" else None)
    rows = summary_rows(result)
    assert rows[f"test {score}"] == f"{result['test_score']:.4f}"
    assert ("test_hits@10" in rows) == (task == "link")


def check_degrees(out: Path, dataset: Dataset, losses: list[float], score: float) -> None:
    assert len(losses) == SMALL.epochs
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]
    degrees, test = dataset.graph.in_degrees().numpy(), dataset.graph.ndata["test_mask"].numpy()
    predictions = np.load(out / "predictions.npy")
    assert predictions.shape == degrees.shape
    off = np.abs(np.log1p(predictions) - np.log1p(degrees))[test]
    assert (off < np.log(2)).mean() == pytest.approx(score, abs=0.05)  # the predictions are rounded
    assert score > 0.3


def test_a_new_task_is_one_file_and_one_name(monkeypatch, data_root, tmp_path):
    """tests/programs/degree_task.py as a file of tutorial_lib/tasks, and its name in TASKS."""
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.setitem(sys.modules, "tutorial_lib.tasks.degree", importlib.import_module("degree_task"))
    monkeypatch.setitem(tasks.TASKS, "degree", tasks.TaskEntry("degree", "DegreeTask", labels=False))
    source = DataSource("synthetic-products", scale=0.002, root=data_root)
    config = TrainConfig.from_dict({**SMALL.to_dict(), "task": "degree"})
    result = run_single(source, config, tmp_path / "run")
    assert (result["score"], result["test_accuracy"]) == ("share within a factor of two", None)
    losses = [epoch["loss"] for epoch in result["epochs"]]
    check_degrees(tmp_path / "run", source.load(), losses, result["test_score"])


@pytest.mark.cluster
def test_a_new_task_on_two_machines(emulation, nothing_left, small_dataset, tmp_path):
    partition = partition_dataset(small_dataset, 2, tmp_path / "parts")
    script = [str(PROGRAMS / "degree_trainer.py"), str(partition.folder), str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    events = run_program(partition, tmp_path, *script, json.dumps(SMALL.to_dict()))
    (evaluation,) = (event for event in events if event["kind"] == "evaluation")
    losses = [event["loss"] for event in events if event["kind"] == "epoch"]
    check_degrees(tmp_path / "run", small_dataset, losses, evaluation["test_score"])
