"""Train and evaluate one task, as a rank of a job or in a single process."""

from pathlib import Path

from tutorial_lib.compat.settings import release_freed_memory
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks import get_task_class
from tutorial_lib.tasks.task import DistShard, LocalShard
from tutorial_lib.trainer.checkpoint import CheckpointManager, export_weights
from tutorial_lib.trainer.comm import barrier
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import no_events, span
from tutorial_lib.trainer.loop import Stopped, TrainResult, fit
from tutorial_lib.trainer.placement import choose_device
from tutorial_lib.trainer.session import Session


def train_in_job(
    session: Session, config: TrainConfig, folder: Path, out: Path, checkpoints: CheckpointManager, device: str = "cpu"
) -> None:
    """Train and evaluate the partition in ``folder`` as one rank of a job. Rank 0 writes the results into ``out``."""
    task_class, emit = get_task_class(config.task), session.events.emit
    emit_once = emit if session.rank == 0 else no_events
    placement = choose_device("cpu" if device == "auto" and not task_class.supports_gpu else device)
    partition = load_partition_folder(folder, checksums=False, part=session.graph.get_partition_book().partid)
    with span(emit, "preparing"):
        task = task_class(DistShard(session, partition, placement), config)
    emit("placed", **placement.describe())
    emit("split", **task.split)
    checkpoints.emit = emit_once
    try:
        fit(placement.wrap(task.model), task, config, emit=emit, checkpoints=checkpoints)
    except Stopped:  # a later start continues from the checkpoint
        return
    if session.rank == 0:
        export_weights(task.model, config.to_dict(), checkpoints.folder)
    emit_once("evaluating")
    release_freed_memory()
    with span(emit, "evaluation"):
        result = task.evaluate()
    if session.rank == 0:
        result.save(out)
    emit_once("evaluation", **result.summary())
    barrier()


def train_single(shard: LocalShard, config: TrainConfig, checkpoints: CheckpointManager | None = None) -> TrainResult:
    """Train on the whole graph in this process and return the result. A job must agree with this result."""
    task = get_task_class(config.task)(shard, config)
    epochs = fit(task.model, task, config, emit=shard.emit, checkpoints=checkpoints)
    with span(shard.emit, "evaluation"):
        result = task.evaluate()
    result.epochs, result.model = epochs, task.model
    return result
