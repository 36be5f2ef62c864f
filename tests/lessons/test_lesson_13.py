"""Lesson 13: link.py keeps the abilities of train.py, and its exact scores do not depend on the number of ranks."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import launch
from solution_support import NOTEBOOKS

FROZEN = "--lr 0 --num_epochs 1 --epoch_edges 2000 --hidden 16 --out result.json"  # the weights stay as they are


def link_words(part: Any, more: str) -> list[str]:
    names = ["--graph_name", part.graph_name, "--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    return ["scripts/link.py", *names, *more.split()]


def run_alone(folder: Path, part: Any, more: str, *tool: str) -> subprocess.CompletedProcess:
    words = [sys.executable, *tool, *link_words(part, more)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200)


def run_on_machines(folder: Path, part: Any, more: str, *options: str) -> str:
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt", "--num_omp_threads", "1"]
    command = shlex.join(["python3", *link_words(part, more)])
    done = launch("--emulate", "2", *base, *options, command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scores(folder: Path) -> list[float]:
    (epoch,) = json.loads((folder / "result.json").read_text())["epochs"]
    return [epoch["val_mrr"], epoch["test_mrr"]]


@pytest.fixture(scope="module")
def alone(partition_of, tmp_path_factory) -> list[float]:
    """The exact scores of one process."""
    folder = tmp_path_factory.mktemp("alone")
    ignored = shutil.ignore_patterns("exercise_*", "out", "__pycache__")
    shutil.copytree(NOTEBOOKS / "scripts", folder / "scripts", ignore=ignored)
    done = run_alone(folder, partition_of(1), FROZEN)
    assert done.returncode == 0, done.stdout + done.stderr
    return scores(folder)


def test_under_torchrun(scripts, partition_of, alone):
    tool = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    done = run_alone(scripts.parent, partition_of(1), FROZEN, *tool)
    assert done.returncode == 0, done.stdout + done.stderr
    assert scores(scripts.parent) == pytest.approx(alone, abs=1e-4)


@pytest.mark.cluster
@pytest.mark.parametrize("samplers", ["0", "1"])
def test_under_launch(scripts, emulation, nothing_left, partition_of, alone, samplers):
    """Two machines with two trainers each, which sample edges in sampler processes, if any."""
    options = ("--num_trainers", "2", "--num_samplers", samplers, "--out", "logs")
    run_on_machines(scripts.parent, partition_of(2), f"{FROZEN} --negatives local_joint --num_negatives 4", *options)
    assert scores(scripts.parent) == pytest.approx(alone, abs=1e-4)


@pytest.mark.cluster
def test_resumed_job_has_equal_losses_and_cached_rows(scripts, emulation, nothing_left, partition_of):
    """Two epochs, and then a resumed third one with a cache, have the losses of three epochs. Other settings fail."""
    folder, part, losses = scripts.parent, partition_of(2), []
    common = "--hidden 16 --epoch_edges 2000 --checkpoint checkpoint.pt --best best.pt --out result.json"
    for number, more in enumerate(("--num_epochs 2", "--num_epochs 3 --cache 1000000", "--num_epochs 3")):
        if number == 2:
            (folder / "checkpoint.pt").unlink()
        run_on_machines(folder, part, f"{common} {more}", "--out", f"logs-{number}")
        epochs = json.loads((folder / "result.json").read_text())["epochs"]
        losses.append([epoch["loss"] for epoch in epochs])
        assert ("hit_rate" in epochs[-1]) == (number == 1)
    assert losses[1] == losses[2]
    assert losses[0] == losses[1][:2]
    assert losses[0][1] < losses[0][0]
    done = run_alone(folder, partition_of(1), f"{common} --num_epochs 4 --negatives joint")
    assert done.returncode != 0
    assert "ValueError: negatives is joint, and was uniform, ranks is 1, and was 2" in done.stderr
