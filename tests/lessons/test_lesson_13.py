"""Lesson 13: link.py keeps the abilities of train.py, and its exact scores do not depend on the number of ranks."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import launch
from solution_support import copy_scripts

FROZEN = "--lr 0 --num_epochs 1 --epoch_edges 2000 --hidden 16"  # the weights stay as they are
MACHINES = ("--emulate", "2", "--num_omp_threads", "1")


def run(folder: Path, part: Any, more: str, *tool: str) -> subprocess.CompletedProcess:
    """Run link.py with a module of Python, or with ``launch``, if the words of the tool begin as ``MACHINES``."""
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    words = ["scripts/link.py", "--graph_name", part.graph_name, *base, *more.split(), "--out", "result.json"]
    if tool[:1] == MACHINES[:1]:
        return launch(*tool, *base, shlex.join(["python3", *words]), cwd=folder)
    return subprocess.run([sys.executable, *tool, *words], cwd=folder, capture_output=True, text=True, timeout=200)


def epochs_of(folder: Path, *job: Any) -> list[dict]:
    done = run(folder, *job)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())["epochs"]


def scores(folder: Path, *job: Any) -> list[float]:
    (epoch,) = epochs_of(folder, *job)
    return [epoch["val_mrr"], epoch["test_mrr"]]


@pytest.fixture(scope="module")
def alone(partition_of, tmp_path_factory) -> list[float]:
    """The exact scores of one process."""
    return scores(copy_scripts(tmp_path_factory.mktemp("alone")).parent, partition_of(1), FROZEN)


def test_under_torchrun(scripts, partition_of, alone):
    tool = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    assert scores(scripts.parent, partition_of(1), FROZEN, *tool) == pytest.approx(alone, abs=1e-4)


@pytest.mark.cluster
def test_under_launch(scripts, emulation, nothing_left, partition_of, alone):
    """Two machines with two trainers each, which sample edges in sampler processes."""
    tool = (*MACHINES, "--num_trainers", "2", "--num_samplers", "1", "--out", "logs")
    more = f"{FROZEN} --negatives local_joint --num_negatives 4"
    assert scores(scripts.parent, partition_of(2), more, *tool) == pytest.approx(alone, abs=1e-4)


@pytest.mark.cluster
def test_resumed_job_has_equal_losses_and_cached_rows(scripts, emulation, nothing_left, partition_of):
    """An epoch, and then a resumed second one with a cache, have the losses of two epochs. Other settings fail."""
    folder, losses, common = scripts.parent, [], "--hidden 16 --epoch_edges 2000 --checkpoint checkpoint.pt"
    for number, more in enumerate(("--num_epochs 1", "--num_epochs 2 --cache 1000000", "--num_epochs 2")):
        if number == 2:
            (folder / "checkpoint.pt").unlink()
        epochs = epochs_of(folder, partition_of(2), f"{common} {more}", *MACHINES, "--out", f"logs-{number}")
        losses.append([epoch["loss"] for epoch in epochs])
        assert ("hit_rate" in epochs[-1]) == (number == 1)
    assert losses[1] == losses[2]
    assert losses[0] == losses[1][:1]
    assert losses[1][1] < losses[1][0]
    done = run(folder, partition_of(1), f"{common} --num_epochs 3 --negatives joint")
    assert done.returncode != 0
    assert "ValueError: negatives is joint, and was uniform, ranks is 1, and was 2" in done.stderr
