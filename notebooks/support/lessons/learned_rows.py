"""Lesson 14, in the notebook: the baseline, the script of two ranks and one row, a trainer that is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.label_propagation import propagate_labels
from support.lessons import learned_rows_script
from support.lessons.breaking import failure_of
from support.lessons.lifelines import processes_of, wait_for_step
from support.lessons.machines import require_machines  # noqa: F401  the notebook's
from support.lessons.multi_machine_jobs import launch_on_parts
from tutorial_lib.cluster.coordinator import Limits
from tutorial_lib.data import Dataset
from tutorial_lib.job.handle import Job
from tutorial_lib.partition import Partition

LIMITS = Limits(cause=60)  # how long to wait for the cause of a lost connection: on a busy computer more than 5 s


def run_rows_script(part: Partition, out: Path) -> dict[str, Any]:
    """Run ``learned_rows_script`` on two emulated machines with a trainer each; what it found, by experiment.

    Raises:
        JobFailed: with the first cause.
    """
    command = [sys.executable, str(Path(learned_rows_script.__file__)), str(out / "found.json")]
    launch_on_parts(command, part, out, lambda _event: None)
    return json.loads((out / "found.json").read_text())


def kill_in_mid_epoch(job: Job, epoch: int, step: int, rank: int = 1) -> str:
    """Wait until all ranks have done a step, then kill a trainer with SIGKILL; what the job said of it."""
    wait_for_step(job, epoch, step)
    victim = next(process for process in processes_of(job.out) if process.rank == rank)
    os.kill(victim.pid, signal.SIGKILL)
    return failure_of(lambda: job.watch(quiet=True)).message


def held_by(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Of each machine, rows and bytes as the ``embedding`` events tell."""
    found = sorted((event for event in events if event["kind"] == "embedding"), key=lambda event: event["rank"])
    keys = ("rows", "weight", "step", "mem", "power", "shared_memory")
    return {event["machine"]: {key: event[key] for key in keys} for event in found}


def propagation_scores(dataset: Dataset, alphas: Iterable[float], rounds: int = 20) -> dict[float, dict[str, float]]:
    """Accuracy of label propagation on the validation and the test nodes, for each share of the neighbours."""
    graph = dataset.graph
    label, train = graph.ndata["label"], graph.ndata["train_mask"]
    scores = {}
    for alpha in alphas:
        right = propagate_labels(graph, label, train, dataset.num_classes, rounds=rounds, alpha=alpha) == label
        scores[alpha] = {name: float(right[graph.ndata[f"{name}_mask"]].float().mean()) for name in ("val", "test")}
    return scores
