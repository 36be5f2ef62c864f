"""Complete runs of ``train``: the files of the results, and agreement with a single process."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from commands import check_predictions, train
from safetensors.torch import load_file
from shared_data import shared_data

from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import _write_result, describe_training
from tutorial_lib.models.graphsage import build_graphsage
from tutorial_lib.tasks import TASKS, TaskEntry
from tutorial_lib.tasks.task import LocalShard, graph_batches, layerwise_inference
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import SCORES

SMALL = ["--scale", "0.005", "--fanouts", "5,5", "--hidden-size", "32"]
RESULT_KEYS = {
    *("dataset", "machines", "trainers_per_machine", "world_size", "epochs", "val_accuracy", "test_accuracy"),
    *("val_score", "test_score", "score", "seconds", "bytes_sent", "peak_rss", "versions"),
}


def check_checkpoint(out: Path, dataset: Dataset) -> None:
    """Check that the saved weights on the whole graph have the predictions of the distributed evaluation."""
    config = TrainConfig.from_dict(json.loads((out / "checkpoint" / "config.json").read_text()))
    model = build_graphsage(config, dataset.num_features, dataset.num_classes)
    model.load_state_dict(load_file(out / "checkpoint" / "model.safetensors"))
    shard = LocalShard(dataset)
    logits = layerwise_inference(model, graph_batches, shard.data["feat"], shard, 5000)
    top = logits.topk(2).values
    clear = (top[:, 0] - top[:, 1] > 1e-4).numpy()  # where two classes tie, the order of a sum may decide
    assert clear.mean() > 0.99
    predictions = np.load(out / "predictions.npy")
    assert (predictions[clear] == logits.argmax(1).numpy()[clear]).all()


@pytest.mark.parametrize(
    ("task", "predictions", "written"), [("node", [1, 0], ["no", "yes"]), ("degree", [0.5, 2.0], ["0.5", "2"])]
)
def test_predictions_that_are_no_classes_are_written_as_numbers(task, predictions, written, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "degree", TaskEntry("degree", "DegreeTask", classes=False))
    np.save(tmp_path / "predictions.npy", np.array(predictions))
    events = [{"kind": "evaluation", **dict.fromkeys(SCORES)}]
    events += [{"kind": "placed", **dict.fromkeys(["device", "backend", "device_reason"])}]
    facts = {"config": {"task": task}, "dataset_info": {"name": "x", "class_names": ["yes", "no"]}}
    facts |= {"machines": 1, "trainers_per_machine": 1}
    _write_result(tmp_path, facts, pa.array(["a", "b"]), SimpleNamespace(events=events, resumed=[]), {})
    rows = (tmp_path / "predictions.csv").read_text().replace('"', "").splitlines()
    assert rows == ["id,prediction", f"a,{written[0]}", f"b,{written[1]}"]


@pytest.mark.cluster
def test_two_machines_from_the_command_line(finished_run):
    _, out, printed, result, dataset = finished_run
    assert set(result) >= RESULT_KEYS
    assert (result["machines"], result["trainers_per_machine"], result["world_size"]) == (2, 1, 2)
    assert [epoch["epoch"] for epoch in result["epochs"]] == [0, 1, 2]
    assert all(set(epoch) == {"epoch", "loss", "seconds", "val_score", "val_accuracy"} for epoch in result["epochs"])
    assert result["epochs"][2]["loss"] < result["epochs"][0]["loss"]
    # Each machine sent at least gradients; the loopback interface is not counted.
    assert set(result["bytes_sent"]) == {"machine-0", "machine-1"}
    assert min(result["bytes_sent"].values()) > 1e6
    for used in result["peak_rss"].values():
        assert used["server"] > 1e8
        assert used["trainer"] > 1e8
    assert result["versions"]["dgl"] == "2.1.0"
    check_predictions(out, result, dataset)

    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert kinds.count("joined") == kinds.count("left") == 2
    assert kinds.count("epoch") == 3
    for machine in ("machine-0", "machine-1"):
        assert "Server is exiting" in (out / "logs" / machine / "server-0.log").read_text()
        assert (out / "logs" / machine / "trainer-0.log").exists()
    check_checkpoint(out, dataset)
    for words in ("epoch 3/3", "test accuracy", "bytes sent", f"run folder: {out}\n", "make lab"):
        assert words in printed


@pytest.mark.parametrize(
    ("asked", "samplers", "compact"),
    [({}, 0, True), ({"task": "embedding"}, 0, False), ({"loader": "dgl"}, 0, False), ({}, 1, False)],
)
def test_graphbolt_format_is_used_without_edge_ids(partition_of, tmp_path, asked, samplers, compact):
    """DGL's sampler, sampler processes and other tasks need parts in DGL's format, which are six times as large."""
    layout = Layout(emulate=2, samplers=samplers)
    partition = partition_of(2)
    config = TrainConfig(**asked)
    job = describe_training(partition, layout.make_backend(), layout, config, tmp_path, tmp_path / "logs")
    ((_name, arguments),) = job.to_spec().checks
    assert arguments["graphbolt"] == compact


@pytest.mark.cluster
def test_several_trainers(emulation, nothing_left, data_root, small_dataset, tmp_path):
    options = "--emulate 2 --trainers 2 --batch-size 100 --epochs 1"
    result = train(tmp_path / "run", data_root, *options.split(), *SMALL)
    assert result["world_size"] == 4
    check_predictions(tmp_path / "run", result, small_dataset)


@pytest.mark.whole_run
def test_single_process(single_run):
    assert set(single_run.result) >= RESULT_KEYS
    assert single_run.result["world_size"] == 1
    check_predictions(single_run.out, single_run.result, single_run.dataset)


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("options", "score", "least", "difference"),
    [
        ("--epochs 30 --fanouts 10,5", "test_accuracy", 0.88, 0.015),
        ("--scale 0.04 --epochs 12", "val_accuracy", 0, 0.01),
    ],
    ids=["real data", "default data"],
)
def test_two_machines_agree_with_one_process(options, score, least, difference, emulation, data_root, tmp_path):
    """Both runs use the same number of seed nodes per step. The real data set is Amazon computers."""
    words = options.split()
    if real := "--scale" not in words:
        path = str(shared_data("amazon_computers", "amazon_co_buy_computer.npz"))
        words += ["--dataset", path]
    two = train(tmp_path / "two", data_root, *words, "--emulate", "2")
    one = train(tmp_path / "one", data_root, *words, "--single-process", "--batch-size", "2000")
    assert two[score] >= least
    assert abs(two[score] - one[score]) <= difference
    if real:
        check_predictions(tmp_path / "two", two, load_dataset(path))
