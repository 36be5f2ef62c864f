"""Lesson 13: link.py keeps the abilities of train.py, and its exact scores do not depend on the number of ranks."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import launch


def run(folder: Path, part: Any, more: str, *options: str) -> list[dict]:
    """Run link.py on this machine, or with options of ``launch`` on two machines. Return its epochs."""
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    words = ["scripts/link.py", "--graph_name", part.graph_name, *base, *more.split(), "--out", "result.json"]
    words += ["--hidden", "16", "--epoch_edges", "2000"]
    if options:
        base += ["--emulate", "2", "--num_omp_threads", "1"]
        done = launch(*options, *base, shlex.join(["python3", *words]), cwd=folder)
    else:
        done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())["epochs"]


@pytest.mark.cluster
def test_exact_scores(scripts, emulation, nothing_left, partition_of):
    """One process, and two machines with two trainers each, which sample edges in sampler processes. No training."""
    frozen, folder = "--lr 0 --num_epochs 1", scripts.parent
    (alone,) = run(folder, partition_of(1), frozen)
    options = ("--num_trainers", "2", "--num_samplers", "1", "--out", "logs")
    (launched,) = run(folder, partition_of(2), f"{frozen} --negatives local_joint --num_negatives 4", *options)
    for name in ("val_mrr", "test_mrr"):
        assert launched[name] == pytest.approx(alone[name], abs=1e-4)


@pytest.mark.cluster
def test_resumed_job_has_equal_losses_and_cached_rows(scripts, emulation, nothing_left, partition_of):
    """An epoch, and then a resumed second one with a cache, have the losses of two epochs without a stop."""
    folder, jobs = scripts.parent, ("--num_epochs 1", "--num_epochs 2 --cache 1000000", "--num_epochs 2")
    names = ("stopped.pt", "stopped.pt", "whole.pt")
    first, resumed, whole = (
        run(folder, partition_of(2), f"{more} --checkpoint {name}", "--out", f"logs-{number}")
        for number, (more, name) in enumerate(zip(jobs, names, strict=True))
    )
    assert [epoch["loss"] for epoch in resumed] == [epoch["loss"] for epoch in whole]
    assert first[0]["loss"] == resumed[0]["loss"] > resumed[1]["loss"]
    assert "hit_rate" in resumed[1]
    assert "hit_rate" not in whole[1]
