"""The training loop: one, for every task, for one process and for many.

train_task  one pass over this process's batches, counts summed over all ranks
fit         epochs, each followed by a validation
learn       the same as the ranks of a job do it: with events, checkpoints and the weights in a file
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.tasks.evaluation import sum_over_ranks
from tutorial_lib.trainer.checkpoint import Checkpoints, export_weights
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.protocols import Saver, Task
from tutorial_lib.trainer.seeding import start_epoch
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.sparse_join import joined
from tutorial_lib.trainer.steps import Emit, Pulse, StepLog, no_events


@dataclass
class EpochResult:
    """One epoch, over all ranks: mean loss per seed node, seconds of the training part, sampled accuracy."""

    epoch: int
    loss: float
    seconds: float
    val_accuracy: float


@dataclass
class TrainResult:
    """What training one model gave.

    Attributes:
        val_accuracy, test_accuracy: the task's main score, see ``tasks.score_name``.
        predictions: int64 (N,) in the data set's original order; None where a task predicts no classes.
        scores: other scores, by name.
    """

    epochs: list[EpochResult]
    val_accuracy: float
    test_accuracy: float
    predictions: Tensor | None
    model: nn.Module = field(repr=False)
    scores: dict[str, float] = field(default_factory=dict)


def train_task(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, *, epoch: int = 0, emit: Emit = no_events
) -> float:
    """One pass; returns the mean loss per example over all ranks. Each step is an event, see ``steps``.

    Under ``Join`` a rank that runs out of batches answers the all-reduces of the others, and their exchanges of
    gradients of rows, until they are through; without it they would wait for it for ever.

    Raises:
        FloatingPointError: this rank's loss is not a finite number.
    """
    model.train()
    loss_sum, count = 0.0, 0
    log = StepLog(emit, epoch, len(task.batches))
    with joined(model, task.sparse_optimizers):
        for batch in task.batches:
            log.received(getattr(batch, "seconds", None))
            prepared = task.prepare(batch)
            log.lap("pull")
            loss, examples = task.loss(model, prepared)
            value = finite(loss.item(), epoch, log.step)
            log.lap("forward")
            for each in (optimizer, *task.sparse_optimizers):
                each.zero_grad()
            loss.backward()
            log.lap("backward")
            optimizer.step()
            for sparse in task.sparse_optimizers:
                sparse.step()
            log.lap("update")
            loss_sum += value * examples
            count += examples
            log.done(value, *task.traffic(batch, prepared))
    total, examples = sum_over_ranks([loss_sum, count])
    log.close()
    return total / examples


def finite(loss: float, epoch: int, step: int) -> float:
    """The loss; a FloatingPointError that says where and what to do if it is not a finite number."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"loss is {loss} in epoch {epoch + 1}, step {step + 1}; try a smaller --learning-rate, or check the "
            "features for values that are not finite"
        )
    return loss


def fit(
    model: nn.Module,
    task: Task,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
    *,
    emit: Emit = no_events,
    saver: Saver | None = None,
) -> list[EpochResult]:
    """Train until ``config.epochs`` epochs are finished, those of a checkpoint included; returns all of them.

    Args:
        model: a GraphSAGE, or one wrapped in DistributedDataParallel.
        on_epoch: called after each epoch that is trained here.
        emit: takes the events of steps and of validation.
        saver: keeps checkpoints, and may have one to continue from.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    # Evaluation must not go through DDP: its forward would expect a backward on every rank.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    results = [EpochResult(**epoch) for epoch in (saver.restore(plain, optimizer) if saver else [])]
    for epoch in range(len(results), config.epochs):
        start_epoch(config.seed, epoch)
        start = time.perf_counter()
        loss = train_task(model, optimizer, task, epoch=epoch, emit=emit)
        seconds = time.perf_counter() - start
        val_accuracy = task.validate(plain, Pulse(emit, "validation"))
        results.append(EpochResult(epoch, loss, seconds, val_accuracy))
        on_epoch(results[-1])
        if saver:
            saver.save(plain, optimizer, [asdict(result) for result in results], last=epoch == config.epochs - 1)
    return results


def learn(
    session: Session,
    model: DistributedDataParallel,
    task: Task,
    config: TrainConfig,
    checkpoints: Checkpoints,
) -> None:
    """``fit`` as the ranks of a job do it, for every task: events, checkpoints, and the weights in a file."""

    def report(result: EpochResult) -> None:
        if session.rank == 0:
            session.events.emit("epoch", **asdict(result))

    if session.rank == 0:
        checkpoints.emit = session.events.emit
    fit(model, task, config, report, emit=session.events.emit, saver=checkpoints)
    if session.rank == 0:
        export_weights(model.module, config.to_dict(), checkpoints.folder)
        session.events.emit("evaluating")
