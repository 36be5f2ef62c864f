"""Tests of ``hetero.py``. They start one or two real ranks."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.distributed as dist

import hetero
from job import arguments
from support.processes import fork
from train import fit
from typed import make_tables, sample_types

on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=30)
FILES = ["--graph_name", "academic", "--part_config", "x", "--ip_config", "x"]
EXACT = [*FILES, "--fanouts=-1,-1", "--dropout", "0", "--hidden", "4", "--batch_size", "2"]


def make_task(g, *words):
    return hetero.TypedTask(g, arguments(**hetero.OPTIONS).parse_args([*EXACT, *words]))


def read_task(g, **tables):
    """Return a task without a model."""
    task = hetero.TypedTask.__new__(hetero.TypedTask)
    task.args, task.device, task.omit = SimpleNamespace(target="paper", cache=0), torch.device("cpu"), set()
    task.label, task.inputs = g.nodes["paper"].data["label"], tables
    return task


@pytest.mark.parametrize("seeds", [[3, 1], []])
def test_read(academic, seeds):
    """The labels are those of the seeds. Without seeds, return no labels and record no read of an embedding."""
    g = academic[0]

    def run(_rank, _size):
        tables = make_tables(g, g.ntypes, 2)
        task = read_task(g, **tables)
        sample = sample_types(g, [-1, -1], set(), "paper", torch.tensor(seeds, dtype=torch.int64))
        blocks, x, y = task.read(sample)
        first, reads = sample[1][0], [len(tables[name]._trace) for name in ("author", "field")]
        right = {name: len(rows) == first.num_src_nodes(name) for name, rows in x.items()}
        return right, [b.num_edges() for b in blocks] == [b.num_edges() for b in sample[1]], y.tolist(), y.dtype, reads

    got = on_ranks(run, 1)[0]
    expected = (
        dict.fromkeys(["author", "field", "paper"], True),
        True,
        [2, 1][: len(seeds)],
        torch.int64,
        [bool(seeds)] * 2,
    )
    assert got == expected


def test_read_moves_everything_to_the_device(academic):
    """Move blocks, rows and labels. Here, the device is called "meta", and only ``to`` accepts this name."""
    g = academic[0]
    task = read_task(g, paper=g.nodes["paper"].data["feat"])
    task.device = torch.device("meta")

    class Block:
        def __init__(self, block):
            self.srcnodes, self.dstnodes, self.device = block.srcnodes, block.dstnodes, None

        def to(self, device):
            self.device = device
            return self

    count, blocks = sample_types(g, [-1], set(), "paper", torch.tensor([2]))
    blocks, x, y = task.read((count, [Block(block) for block in blocks]))
    got = [block.device.type for block in blocks], x["paper"].device.type, y.device.type
    expected = ["meta"], "meta", "meta"
    assert got == expected


def test_evaluate(academic, monkeypatch):
    """The accuracies are exact. The hit rate belongs to the inputs, but the scores are computed from ``tables``."""
    g = academic[0]

    def scores(model, g, tables, omit, device):
        assert (model, g, tables, omit, device) == ("model", academic[0], "tables", {"field"}, torch.device("cpu"))
        return torch.eye(3)[
            torch.tensor([0, 1, 0, 2, 1, 1])
        ]  # papers 4 and 5 are in the validation set, 1 in the test set

    def run(_rank, _size):
        task, results = read_task(g, paper=SimpleNamespace(hit_rate=lambda: 0.25)), []
        task.model, task.g, task.tables, task.omit = SimpleNamespace(module="model"), g, "tables", {"field"}
        task.ids = {"train": torch.tensor([0]), "val": torch.tensor([4, 5]), "test": torch.tensor([1])}
        for task.args.cache in (0, 100):
            results.append(task.evaluate())
        return results

    monkeypatch.setattr(hetero, "infer_types", scores)
    got = on_ranks(run, 1)[0]
    accuracies = {"val_accuracy": 0.5, "test_accuracy": 1.0}
    expected = [accuracies, {**accuracies, "hit_rate": 0.25}]
    assert got == expected


def test_ranks_equal_one_process(academic):
    """One process and two ranks train with all neighbors. Losses, accuracies and embeddings are equal."""
    g = academic[0]

    def run(_rank, size):
        task = make_task(g, "--num_epochs", "3", "--batch_size", str(4 // size))
        epochs = [[epoch[name] for name in ("loss", "val_accuracy", "test_accuracy")] for epoch in fit(task)]
        return torch.tensor(epochs), {name: tensors[0][torch.arange(2)] for name, tensors in task.tensors.items()}

    (expected,), ranks = on_ranks(run, 1), on_ranks(run, 2)
    assert sorted(expected[1]) == ["author", "field"]
    assert all(rows.abs().max() > 0.02 for rows in expected[1].values())
    for got in ranks:
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_resume(academic, tmp_path):
    """Two epochs and a resumed third one equal three epochs, without the type that is left out."""
    g = academic[0]

    def run(_rank, _size):
        words = ["--omit", "field", "--checkpoint"]
        whole = [epoch["loss"] for epoch in fit(make_task(g, *words, f"{tmp_path}/a", "--num_epochs", "3"))]
        fit(make_task(g, *words, f"{tmp_path}/b", "--num_epochs", "2"))
        task = make_task(g, *words, f"{tmp_path}/b", "--num_epochs", "3")
        resumed = [epoch["loss"] for epoch in fit(task)]
        dist.barrier()
        return resumed == whole, sorted(task.tensors), sorted(path.name for path in tmp_path.iterdir())

    got = on_ranks(run, 1)[0]
    expected = True, ["author"], ["a", "a-3-author_0", "b", "b-3-author_0"]
    assert got == expected
