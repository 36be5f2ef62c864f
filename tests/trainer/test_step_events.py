"""Step events of all ranks and steps. Their seconds fit into the epoch, and their bytes equal the pulled rows."""

from types import SimpleNamespace

import pytest
import torch
from commands import read_events

from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.task import LocalShard
from tutorial_lib.trainer.checkpoint import TrainState
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import PHASES, local_and_remote_bytes, summarize_phases
from tutorial_lib.trainer.loop import train_epoch
from tutorial_lib.trainer.manifest import EpochResult

EPOCHS = 3
CONFIG = TrainConfig(epochs=EPOCHS, fanouts=(5, 5), batch_size=50, hidden_size=16)
ROW_BYTES = 100 * 4


@pytest.mark.cluster
def test_events_contain_every_step_of_every_rank(finished_run):
    result, events = finished_run.result, read_events(finished_run.out)
    assert (result["device"], result["backend"]) == ("cpu", "gloo")
    steps = [event for event in events if event["kind"] == "step"]
    shares = {event["rank"]: event["train_nodes"] for event in events if event["kind"] == "split"}
    count = -(-max(shares.values()) // result["config"]["batch_size"])
    for rank in shares:
        found = [(event["epoch"], event["step"]) for event in steps if event["rank"] == rank]
        assert found == [(epoch, step) for epoch in range(EPOCHS) for step in range(count)]
    for event in steps:
        assert event["loss"] > 0
        assert min(event[phase] for phase in PHASES) >= 0
        assert event["bytes_local"] % ROW_BYTES == event["bytes_remote"] % ROW_BYTES == 0
        assert min(event["bytes_local"], event["bytes_remote"]) > 0
    for epoch in result["epochs"]:
        own = [e for e in steps if (e["rank"], e["epoch"]) == (0, epoch["epoch"])]
        total = sum(event[phase] for event in own for phase in PHASES)
        assert 0.5 * epoch["seconds"] < total <= epoch["seconds"] + 1e-3
    assert [(phases["rank"], phases["epochs"]) for phases in result["phases"]] == [(0, EPOCHS), (1, EPOCHS)]
    remote = sum(event["bytes_remote"] for event in steps if event["rank"] == 1)
    assert result["phases"][1]["bytes_remote"] == pytest.approx(remote / EPOCHS)


def test_step_bytes_equal_pulled_rows(small_dataset):
    train = small_dataset.graph.ndata["train_mask"].nonzero().flatten()
    rows, steps = [], []

    class Recorded(BatchLoader):
        def batches(self, epoch: int, start: int = 0):
            for step, batch in super().batches(epoch, start):
                rows.append(len(batch.input_nodes))
                yield step, batch

    task = NodeTask(LocalShard(small_dataset), CONFIG)
    task.train_loader = Recorded(small_dataset.graph, train, [5, 5], 300, shuffle=True)
    state = TrainState([EpochResult(k, 0.0, 0.0, 0.0) for k in range(4)])
    optimizer = torch.optim.Adam(task.model.parameters())
    train_epoch(task.model, optimizer, task, state, emit=lambda _kind, **fields: steps.append(fields))
    places = [(fields["epoch"], fields["step"], fields["steps"]) for fields in steps]
    assert places == [(4, step, len(rows)) for step in range(len(rows))]
    found = [(fields["bytes_local"], fields["bytes_remote"]) for fields in steps]
    assert found == [(count * ROW_BYTES, 0) for count in rows]
    sizes = [len(part) for part in train.tensor_split(len(rows))]
    weighted = sum(fields["loss"] * size for fields, size in zip(steps, sizes, strict=True))
    assert state.loss_sum / state.examples == pytest.approx(weighted / len(train))


def test_bytes_are_counted_by_origin():
    """D22. Bytes of rows are counted by the machine that they come from."""
    book = SimpleNamespace(partid=1, nid2partid=lambda nodes, _ntype: (nodes >= 10).long())
    graph, nodes = SimpleNamespace(get_partition_book=lambda: book), torch.tensor([3, 11, 12, 4, 15])
    assert local_and_remote_bytes(graph, nodes, torch.zeros(5, 7)) == (3 * 28, 2 * 28)
    by_type = local_and_remote_bytes(
        graph, {"a": nodes, "b": nodes[:1]}, {"a": torch.zeros(5, 7), "b": torch.zeros(1, 1)}
    )
    assert by_type == (3 * 28, 2 * 28 + 4)


def test_repeated_step_is_counted_once():
    def step(number: int, pull: float) -> dict:
        phases = {**dict.fromkeys(PHASES, 0.0), "pull": pull, "bytes_local": 1, "bytes_remote": 2}
        return {"kind": "step", "rank": 0, "epoch": 1, "step": number, **phases}

    found = summarize_phases([step(0, 9.0), {"kind": "resumed"}, step(0, 1.0), step(1, 2.0)])
    assert found[0]["seconds"]["pull"] == 3.0
    assert (found[0]["steps"], found[0]["bytes_remote"]) == (2, 4)
