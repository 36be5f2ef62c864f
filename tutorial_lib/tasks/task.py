"""What a task is, and the two ways in which every task is trained: on the ranks of a job, and in one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tutorial_lib.batches.nodes import rows_of
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks import task_named
from tutorial_lib.tasks.shares import RankShare, Share, Whole
from tutorial_lib.trainer.checkpoint import Checkpoints, export_weights
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.exchange import accuracy, gather_by_number, sum_over_ranks
from tutorial_lib.trainer.loop import Task, TrainResult, fit
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.session import Session

ROWS = 100_000  # looked at, at a time


class TaskSpec(ABC):
    """What is learned. A module of this folder has one as its ``TASK``; docs/architecture.md shows how to add one.

    Attributes:
        name: of the module, as in ``--task``.
        uses_features: whether the nodes must have ``feat``; False: the data set is loaded without.
        score: what ``evaluate`` and ``Task.validate`` give.
        on_gpu: whether its model can compute on a GPU.
    """

    name: str
    uses_features = True
    score = "accuracy"
    on_gpu = True

    def check(self, facts: Mapping[str, Any]) -> None:
        """Whether a data set suits the task, before anything is started: nodes of one type, and their features.

        Args:
            facts: the ``dataset`` of a partition's manifest, ``partition.dataset_description`` makes it.

        Raises:
            InputError: it does not; the message says what is missing.
        """
        if "target" in facts:
            raise InputError(
                f"{facts['name']}: --task {self.name} needs a graph with one type of nodes, this one has several",
                "Take --task hetero, or another data set.",
            )
        if self.uses_features and not facts["num_features"]:
            raise InputError(
                f"{facts['name']}: --task {self.name} needs node features, and there are none",
                "For a graph without features: --task embedding.",
            )

    @abstractmethod
    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, Task]:
        """The model, with weights that depend on ``config.seed`` alone, and what the loop needs to teach it.

        Every rank calls it. Of a model, ``models`` has two.
        """

    @abstractmethod
    def evaluate(self, share: Share, model: nn.Module, task: Any, config: TrainConfig) -> TrainResult:
        """Exact scores over all ranks; every rank calls it, with what ``begin`` gave."""


def train_in_job(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
    *,
    spec: TaskSpec | None = None,
) -> None:
    """What each rank of a job does: learn, evaluate exactly, report.

    Args:
        out: run folder; rank 0 writes what the task predicts.
        spec: the task; None: that of ``config``.

    Raises:
        InputError: the ranks do not have the device that was asked for.
    """
    spec, emit, first = spec or task_named(config.task), session.events.emit, session.rank == 0
    emit_once = emit if first else no_events
    place = _suits(spec, settle("cpu" if device == "auto" and not spec.on_gpu else device))
    own_part = session.graph.get_partition_book().partid
    share = RankShare(session, load_partition_folder(partition_folder, checksums=False, part=own_part), place)
    model, task = spec.begin(share, config)
    emit("placed", **place.describe())
    emit("split", **task.split)
    checkpoints.emit = emit_once
    fit(place.wrap(model), task, config, emit=emit, saver=checkpoints, score=spec.score)
    if first:
        export_weights(model, config.to_dict(), checkpoints.folder)
    emit_once("evaluating")
    result = spec.evaluate(share, model, task, config)
    result.score = spec.score
    if first:
        result.save(out)
    emit_once("evaluation", **result.summary())
    session.barrier()


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    *,
    emit: Emit = no_events,
    saver: Checkpoints | None = None,
    place: Placement = CPU,
    spec: TaskSpec | None = None,
) -> TrainResult:
    """The same in this process, on the whole graph: what a job must agree with. Arguments as ``loop.fit``."""
    spec = spec or task_named(config.task)
    share = Whole(dataset, _suits(spec, place), emit)
    model, task = spec.begin(share, config)
    epochs = fit(model, task, config, emit=emit, saver=saver, score=spec.score)
    result = spec.evaluate(share, model, task, config)
    result.score, result.epochs, result.model = spec.score, epochs, model
    return result


def _suits(spec: TaskSpec, place: Placement) -> Placement:
    if place.on_gpu and not spec.on_gpu:
        raise InputError(f"--task {spec.name} computes on the CPU", "Take --device cpu.")
    return place


def class_scores(share: Share, logits: Any) -> TrainResult:
    """Accuracy, and predictions in the data set's order, from the stored logits of all nodes."""
    nodes = share.own()
    predictions = torch.cat([rows_of(logits, part).argmax(1) for part in nodes.split(ROWS)])
    val, test = shares_right(share, nodes, predictions == rows_of(share.data["label"], nodes))
    return TrainResult(val, test, gather_by_number(nodes, predictions, share.numbers())[1])


def shares_right(share: Share, nodes: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Of the validation and of the test nodes of all ranks, the share that is right: counts are summed, not means.

    Args:
        nodes: int64 (M,), those of this rank; right: bool (M,).
    """
    counts: list[float] = []
    for mask in ("val_mask", "test_mask"):
        chosen = rows_of(share.data[mask], nodes).bool()  # DGL returns masks as uint8, which would index, not select
        counts += [float((right & chosen).sum()), float(chosen.sum())]
    val_right, val_count, test_right, test_count = sum_over_ranks(counts)
    return accuracy(val_right, val_count), accuracy(test_right, test_count)
