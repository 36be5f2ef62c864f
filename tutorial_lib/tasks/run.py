"""Train and evaluate one task, as a rank of a job or in a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tutorial_lib.compat.heap import give_back_freed_memory
from tutorial_lib.data.base import Dataset
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks import task_named
from tutorial_lib.tasks.shard import DistShard, LocalShard
from tutorial_lib.tasks.task import Task
from tutorial_lib.trainer.checkpoint import CheckpointManager, export_weights
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, no_events, span
from tutorial_lib.trainer.loop import Stopped, TrainResult, fit
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.session import Session


def train_in_job(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: CheckpointManager,
    device: str = "cpu",
    *,
    task_class: type[Task] | None = None,
    **options: Any,
) -> None:
    """Train and evaluate as one rank of a job. Rank 0 writes the results into the run folder ``out``.

    Args:
        device: "cpu", "cuda" or "auto".
        task_class: the task, or None for the task that ``config`` names.
        options: further arguments of the task.

    Raises:
        InputError: the ranks do not have the requested device.
    """
    task_class, emit = task_class or task_named(config.task), session.events.emit
    emit_once = emit if session.rank == 0 else no_events
    place = settle("cpu" if device == "auto" and not task_class.on_gpu else device)
    own_part = session.graph.get_partition_book().partid
    shard = DistShard(session, load_partition_folder(partition_folder, checksums=False, part=own_part), place)
    with span(emit, "preparing"):
        task = task_class(shard, config, **options)
    emit("placed", **place.describe())
    emit("split", **task.split)
    checkpoints.emit = emit_once
    try:
        fit(place.wrap(task.model), task, config, emit=emit, saver=checkpoints, score=task.score_name)
    except Stopped:  # a later start continues from the checkpoint
        return
    if session.rank == 0:
        export_weights(task.model, config.to_dict(), checkpoints.folder)
    emit_once("evaluating")
    give_back_freed_memory()
    with span(emit, "evaluation"):
        result = task.evaluate()
    result.score = task.score_name
    if session.rank == 0:
        result.save(out)
    emit_once("evaluation", **result.summary())
    session.barrier()


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    *,
    emit: Emit = no_events,
    saver: CheckpointManager | None = None,
    place: Placement = CPU,
    task_class: type[Task] | None = None,
    **options: Any,
) -> TrainResult:
    """Train and evaluate in this process on the whole graph. A job must agree with the result.

    The arguments are those of ``train_in_job`` and ``loop.fit``.
    """
    task_class = task_class or task_named(config.task)
    task = task_class(LocalShard(dataset, place, emit), config, **options)
    epochs = fit(task.model, task, config, emit=emit, saver=saver, score=task.score_name)
    with span(emit, "evaluation"):
        result = task.evaluate()
    result.score, result.epochs, result.model = task.score_name, epochs, task.model
    return result
