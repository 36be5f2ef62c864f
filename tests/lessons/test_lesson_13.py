"""Lesson 13: link.py keeps the abilities of train.py, and its exact scores do not depend on the number of ranks."""

from typing import Any

import pytest
from commands import run_program


def run(scripts: Any, part: Any, more: str, *options: str) -> list[dict]:
    """Return the epochs of link.py."""
    return run_program(scripts, "link.py", part, f"{more} --hidden 16 --epoch_edges 2000", *options)["epochs"]


@pytest.mark.cluster
def test_exact_scores(scripts, emulation, nothing_left, partition_of):
    """One process, and two machines with two trainers each, which sample edges in sampler processes. No training."""
    frozen, options = "--lr 0 --num_epochs 1", ("--num_trainers", "2", "--num_samplers", "1")
    (alone,) = run(scripts, partition_of(1), frozen)
    (launched,) = run(scripts, partition_of(2), f"{frozen} --negatives local_joint --num_negatives 4", *options)
    for name in ("val_mrr", "test_mrr"):
        assert launched[name] == pytest.approx(alone[name], abs=1e-4)


@pytest.mark.cluster
def test_resumed_job_has_equal_losses_and_cached_rows(scripts, emulation, nothing_left, partition_of):
    """An epoch, and then a resumed second one with a cache, have the losses of two epochs without a stop."""
    jobs = ("stopped.pt --num_epochs 1", "stopped.pt --num_epochs 2 --cache 1000000", "whole.pt --num_epochs 2")
    first, resumed, whole = (
        run(scripts, partition_of(2), f"--checkpoint {more}", "--num_trainers", "1") for more in jobs
    )
    assert [epoch["loss"] for epoch in resumed] == [epoch["loss"] for epoch in whole]
    assert first[0]["loss"] == resumed[0]["loss"] > resumed[1]["loss"]
    assert "hit_rate" in resumed[1]
    assert "hit_rate" not in whole[1]
