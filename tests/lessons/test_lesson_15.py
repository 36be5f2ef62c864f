"""Lesson 15: hetero.py has the results of one process, also with two trainers per machine, and resumes equally."""

import pytest
import torch
from commands import run_program

from tutorial_lib.data import load_dataset
from tutorial_lib.partition import partition_dataset

EXACT = "--fanouts=-1,-1 --dropout 0 --batch_size 10000 --num_epochs 2 --hidden 8"


@pytest.fixture(scope="module")
def part_of(tmp_path_factory):
    """``part_of(k)``: a small graph with authors, fields and papers in k parts."""
    dataset, folder = load_dataset("synthetic-academic", scale=0.002), tmp_path_factory.mktemp("parts")
    return lambda parts: partition_dataset(dataset, parts, folder / str(parts))


@pytest.mark.cluster
def test_types_on_machines_equal_one_process(scripts, emulation, nothing_left, part_of):
    """All training papers are in one batch. Four ranks read different authors, and some ranks read no field."""
    alone = run_program(scripts, "hetero.py", part_of(1), EXACT)
    machines = run_program(scripts, "hetero.py", part_of(2), EXACT, "--num_trainers", "2")
    assert (alone["ranks"], machines["ranks"]) == (1, 4)
    for name in ("loss", "val_accuracy", "test_accuracy"):
        values = [torch.tensor([epoch[name] for epoch in found["epochs"]]) for found in (alone, machines)]
        torch.testing.assert_close(*values, atol=3e-3, rtol=0)


@pytest.mark.cluster
def test_resumed_types_have_equal_losses(scripts, emulation, nothing_left, part_of):
    """One epoch and a resumed second one equal two epochs. A cache of the features changes no loss."""
    part, losses = part_of(2), {}
    for name, more in (("a", "2"), ("b", "1 --cache 20000"), ("b", "2")):
        common = "--fanouts 3,3 --batch_size 100 --hidden 8"
        found = run_program(
            scripts, "hetero.py", part, f"{common} --checkpoint {name}.pt --num_epochs {more}", "--num_trainers", "1"
        )
        losses[name] = [epoch["loss"] for epoch in found["epochs"]]
    assert losses["a"] == losses["b"]
    assert sorted(path.name for path in scripts.parent.glob("b.pt-*")) == [
        f"b.pt-2-{ntype}_{rank}" for ntype in ("author", "field") for rank in range(2)
    ]
