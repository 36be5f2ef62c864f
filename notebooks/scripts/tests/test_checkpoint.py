"""Tests of ``checkpoint.py``. They start one or two real ranks."""

import functools
import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import checkpoint
from support.processes import fork

on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=30)
STATE = {"weights": torch.arange(4.0)}


def values_in(path):
    """Return the weights in a file, or a message."""
    try:
        return torch.load(path)["weights"].tolist()
    except Exception as error:
        return f"{path.name} cannot be read: {type(error).__name__}"


def folder_of(rank, tmp_path):
    """Return the folder of the machine of this rank, with an old checkpoint."""
    (folder := tmp_path / f"machine-{rank}").mkdir()
    torch.save({"weights": torch.zeros(1)}, folder / "c.pt")
    return folder


def test_write(tmp_path, monkeypatch):
    """Only rank 0 writes, and its machine has no other file afterwards. All ranks return after the (slow) rename."""
    replace = os.replace

    def slow_replace(old, new):
        time.sleep(0.5)
        replace(old, new)

    def run(rank, _size):
        folder = folder_of(rank, tmp_path)
        dist.barrier()
        checkpoint.write(str(folder / "c.pt"), STATE)
        return values_in(tmp_path / "machine-0" / "c.pt"), sorted(os.listdir(folder)), values_in(folder / "c.pt")

    monkeypatch.setattr(os, "replace", slow_replace)
    got = on_ranks(run, 2)
    expected = [([0.0, 1.0, 2.0, 3.0], ["c.pt"], values) for values in ([0.0, 1.0, 2.0, 3.0], [0.0])]
    assert got == expected


def test_failed_write_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    """The disk is full, so torch.save fails after half of the file. ``path`` still contains the old state."""

    def half(_state, file, **_options):
        if isinstance(file, (str, os.PathLike)):
            with open(file, "wb") as opened:
                opened.write(b"half")
        else:
            file.write(b"half")
        raise OSError("No space left on device")

    def run(rank, _size):
        path = folder_of(rank, tmp_path) / "c.pt"
        monkeypatch.setattr(torch, "save", half)
        try:
            checkpoint.write(str(path), STATE)
        except OSError as error:
            return str(error), values_in(path)

    got, expected = on_ranks(run, 1), [("No space left on device", [0.0])]
    assert got == expected


def test_whole_file_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    """Call os.fsync after the last byte and before os.replace. Otherwise, a power failure can leave half a file."""
    calls, replace = [], os.replace
    number_of = lambda file: file if isinstance(file, int) else file.fileno()  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(os.fstat(number_of(file)).st_size))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append((old, new)), replace(old, new)))

    def run(rank, _size):
        path = str(folder_of(rank, tmp_path) / "c.pt")
        checkpoint.write(path, STATE)
        return calls, os.path.getsize(path), path

    ((got, size, path),) = on_ranks(run, 1)
    expected = [size, (f"{path}.new", path)]
    assert got == expected


@pytest.mark.parametrize(("files", "values"), [([1, 2], 1.0), ([1, None], 1.0), ([None, 2], None), ([None] * 2, None)])
def test_read(files, values, tmp_path, monkeypatch):
    """All ranks return the state in the file of rank 0, or None without it. Rank 0 uses map_location."""
    load, devices = torch.load, []

    def recording_load(file, map_location=None, **options):
        devices.append(str(map_location))
        return load(file, map_location, **options)

    def run(rank, _size):
        (folder := tmp_path / str(rank)).mkdir()
        if files[rank]:
            torch.save({"weights": torch.tensor(float(files[rank]))}, folder / "c.pt")
        monkeypatch.setattr(torch, "load", recording_load)
        state = checkpoint.read(str(folder / "c.pt"))
        return state and state["weights"].item(), "cpu" in devices

    got = on_ranks(run, 2)
    expected = [(values, bool(values)), (values, False)]
    assert got == expected


class Task:
    """A linear model with Adam, which learns y = 3 x. The ranks have different values of x."""

    def __init__(self, path, lr=0.01, **more):
        self.args = SimpleNamespace(lr=lr, hidden=4, num_epochs=2, checkpoint=str(path), out="", cache=0, **more)
        self.g = SimpleNamespace(num_nodes=lambda: 9, num_edges=lambda: 20)
        torch.manual_seed(dist.get_rank())
        self.model = DistributedDataParallel(nn.Linear(1, 1))
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=0.01)]
        self.optimizers.append(SimpleNamespace())  # sparse optimizers have no state_dict

    def train(self, steps):
        for step in range(steps):
            x = torch.tensor([[1.0 + step + dist.get_rank()]])
            self.optimizers[0].zero_grad()
            (self.model(x) - 3 * x).square().sum().backward()
            self.optimizers[0].step()
        return [parameter.item() for parameter in self.model.parameters()]


def test_settings(tmp_path):
    """All options count, except those in FREE, and the sizes of the graph."""
    got = on_ranks(lambda *_: checkpoint.settings(Task(tmp_path / "c.pt", dropout=0.5, best="b.pt")), 2)
    expected = [{"lr": 0.01, "hidden": 4, "dropout": 0.5, "ranks": 2, "nodes": 9, "edges": 20}] * 2
    assert got == expected


def test_content_of_the_checkpoint(tmp_path):
    """The model is the one inside DDP, so the names of its weights do not begin with "module."."""

    def run(*_):
        (task := Task(tmp_path / "c.pt")).train(3)
        checkpoint.save(task, [{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 1.0}])
        state = torch.load(tmp_path / "c.pt")
        step, losses = int(state["optimizer"]["state"][0]["step"]), [epoch["loss"] for epoch in state["epochs"]]
        return sorted(state), sorted(state["model"]), step, losses, state["settings"]

    got = on_ranks(run, 1)
    names = ["epochs", "model", "optimizer", "settings"]
    expected = [
        (names, ["bias", "weight"], 3, [2.0, 1.0], {"lr": 0.01, "hidden": 4, "ranks": 1, "nodes": 9, "edges": 20})
    ]
    assert got == expected


def test_resumed_task_has_equal_weights(tmp_path):
    """Save and load the weights and the state of Adam. All ranks load them from the file of rank 0."""

    def run(rank, _size):
        whole, path = Task(""), tmp_path / f"machine-{rank}.pt"
        whole.train(3)
        expected = whole.train(2)
        (first := Task(path)).train(3)
        checkpoint.save(first, [{"epoch": 0}])
        other = Task(path)
        other.args.num_epochs = 7  # this option may change
        epochs = checkpoint.resume(other)
        return other.train(2) == expected, epochs, path.exists()

    got, expected = on_ranks(run, 2), [(True, [{"epoch": 0}], True), (True, [{"epoch": 0}], False)]
    assert got == expected


def test_no_checkpoint(tmp_path, monkeypatch):
    """Without --checkpoint (an empty string), write and read nothing. Return [], also if the file does not exist."""
    monkeypatch.chdir(tmp_path)

    def run(*_):
        task = Task("")
        before = task.train(1)
        checkpoint.save(task, [{"epoch": 0}])
        epochs = checkpoint.resume(task), checkpoint.resume(Task("no-such-file.pt"))
        return epochs, task.train(0) == before, os.listdir()

    got, expected = on_ranks(run, 1), [(([], []), True, [])]
    assert got == expected


def refused(path, **options):
    """Return the error of resume and whether the weights have changed."""
    task = Task(path, **options)
    before = task.train(0)
    try:
        return checkpoint.resume(task), before == task.train(0)
    except ValueError as error:
        return str(error), before == task.train(0)


def test_other_settings(tmp_path):
    """All ranks raise a ValueError that lists all differences, in the order of ``settings``. Nothing is loaded."""

    def run(rank, _size):
        (task := Task(tmp_path / f"machine-{rank}.pt", dropout=0.5)).train(2)
        checkpoint.save(task, [{"epoch": 0}])
        changed = {"lr": 0.5, "dropout": 0.1}
        return refused(task.args.checkpoint, **changed), refused(task.args.checkpoint, dropout=0.5, negatives=1)

    texts = "lr is 0.5, and was 0.01, dropout is 0.1, and was 0.5", "negatives is 1, and was None"
    got, expected = on_ranks(run, 2), [tuple((text, True) for text in texts)] * 2
    assert got == expected


def test_other_ranks_and_another_graph(tmp_path):
    """Other ranks sample other batches. In another graph, the scores of the checkpoint are wrong."""
    path = tmp_path / "c.pt"

    def run(*_):
        (task := Task(path)).g.num_edges = lambda: 18
        checkpoint.save(task, [{"epoch": 0}])

    on_ranks(run, 2)
    got, expected = on_ranks(lambda *_: refused(path), 1), [("ranks is 1, and was 2, edges is 20, and was 18", True)]
    assert got == expected
