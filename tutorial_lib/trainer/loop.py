"""The training loop: one, for every task, for one process and for many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.trainer.checkpoint import CheckpointManager, TrainState
from tutorial_lib.trainer.comm import any_rank, barrier, own_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, OnBatch, Pulse, StepTimer, no_events, span
from tutorial_lib.trainer.manifest import EpochResult
from tutorial_lib.trainer.seeding import seed_all, seed_servers

STOP_STEPS = 5  # steps between two comparisons of the ranks


class Trainable(Protocol):
    """What the loop needs of a task. ``tasks.task.Task`` implements it.

    A loader has a length, the number of steps, and ``batches(epoch, start)`` yields pairs of a step and its batch.
    """

    batches: Any
    sparse_optimizers: Sequence[Any]
    embeddings: Mapping[str, Any]

    def inputs(self, batch: Any) -> tuple[Any, ...]: ...
    def loss(self, model: nn.Module, inputs: Any) -> tuple[Tensor, int]: ...
    def traffic(self, batch: Any, inputs: Any) -> tuple[int, int]: ...
    def validate(self, model: nn.Module, on_batch: OnBatch = ..., *, epoch: int = ...) -> float: ...


@dataclass
class TrainResult:
    """What a task found about one model, over all ranks; and in one process, how the model came about.

    Attributes:
        val_score, test_score: the larger the better; ``score`` says what they are, "accuracy" or "MRR".
        predictions: int64 (N,) in the data set's original order; None where a task predicts no classes; empty on
            the other ranks than 0.
        scores: other scores, by name.
    """

    SUMMARY: ClassVar = ("score", "val_score", "test_score", "val_accuracy", "test_accuracy", "scores")

    val_score: float
    test_score: float
    predictions: Tensor | None = None
    scores: dict[str, float] = field(default_factory=dict)
    score: str = "accuracy"
    epochs: list[EpochResult] = field(default_factory=list)
    model: nn.Module = field(default_factory=nn.Identity, repr=False)

    @property
    def val_accuracy(self) -> float | None:
        """The score where it is an accuracy."""
        return self.val_score if self.score == "accuracy" else None

    @property
    def test_accuracy(self) -> float | None:
        """The score where it is an accuracy."""
        return self.test_score if self.score == "accuracy" else None

    def summary(self) -> dict[str, Any]:
        """The fields of an ``evaluation`` event and of ``result.json``."""
        return {name: getattr(self, name) for name in self.SUMMARY}

    def save(self, out: Path) -> None:
        """Write what belongs into a run folder; rank 0 calls it."""
        if self.predictions is not None:
            np.save(out / "predictions.npy", self.predictions.numpy())


class Stopped(Exception):
    """The run was told to end. All ranks stopped after the same step and saved a checkpoint."""


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Trainable,
    state: TrainState,
    *,
    seed: int = 0,
    emit: Emit = no_events,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train from ``state.step`` to the end of the epoch. Every step is an event.

    All ranks take equally many steps, so every rank takes part in every all-reduce of DDP and in every exchange of a
    sparse optimizer.

    Args:
        model: model in its DistributedDataParallel wrapper if there are several ranks.
        optimizer: dense optimizer.
        task: has the loader, the loss and the sparse optimizers.
        state: progress of this rank, which this function updates.
        seed: seed of the run.
        emit: receives the events.
        stop: returns whether this rank was told to end. The ranks compare their answers every five steps.

    Returns:
        Whether all ranks stopped before the end of the epoch.

    Raises:
        FloatingPointError: the loss of this rank is not a finite number.
    """
    model.train()
    optimizers, steps = [optimizer, *task.sparse_optimizers], len(task.batches)
    timer = StepTimer(emit, state.epoch, steps)
    for step, batch in task.batches.batches(state.epoch, state.step):
        timer.lap("sampling", batch=batch)
        seed_all(seed, state.epoch, step, own_rank())
        inputs = task.inputs(batch)
        timer.lap("pull")
        loss, examples = task.loss(model, inputs)
        value = check_finite(loss.item(), state.epoch, step)
        timer.lap("forward")
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        timer.lap("backward")
        for each in optimizers:
            each.step()
        timer.lap("update")
        state.add(value, examples)
        timer.emit_step(step, value, *task.traffic(batch, inputs))
        if step % STOP_STEPS == STOP_STEPS - 1 and step < steps - 1 and any_rank(stop()):
            return True
    return False


def check_finite(loss: float, epoch: int, step: int) -> float:
    """Return the loss, or raise a FloatingPointError that names the epoch, the step and the remedy."""
    if not math.isfinite(loss):
        advice = "try a smaller --learning-rate, or check the features for values that are not finite"
        raise FloatingPointError(f"loss is {loss} in epoch {epoch + 1}, step {step + 1}; {advice}")
    return loss


def fit(
    model: nn.Module,
    task: Trainable,
    config: TrainConfig,
    *,
    emit: Emit = no_events,
    saver: CheckpointManager | None = None,
    score: str = "accuracy",
) -> list[EpochResult]:
    """Train until ``config.epochs`` epochs are finished, and return the results of all epochs.

    Args:
        model: model, or the model in its DistributedDataParallel wrapper.
        task: has the loaders, the loss and the score.
        config: hyper-parameters.
        emit: receives the events of steps, of validation and, on rank 0, of epochs.
        saver: keeps checkpoints, and may have one to continue from.
        score: name of the result of ``task.validate``.

    Raises:
        Stopped: ``saver.stop`` returned true on a rank. There is a checkpoint.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    # Validation must not go through DDP, whose forward pass expects a backward pass on every rank.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    state = saver.load_latest(plain, optimizer, task) if saver else TrainState()
    stop = saver.stop if saver else lambda: False
    while state.epoch < config.epochs:
        seed_servers(config.seed, state.epoch)
        barrier()  # no rank samples before the servers are seeded
        start, epoch = time.perf_counter(), state.epoch
        stopped = train_epoch(model, optimizer, task, state, seed=config.seed, emit=emit, stop=stop)
        state.seconds += time.perf_counter() - start
        if not stopped:
            total, examples = sum_over_ranks([state.loss_sum, state.examples])
            with span(emit, "validation", epoch=epoch):
                found = task.validate(plain, Pulse(emit, "validation"), epoch=epoch)
            result = EpochResult(epoch, total / examples, state.seconds, found, score)
            state = TrainState([*state.epochs, result])
            if own_rank() == 0:
                emit("epoch", score=score, **result.to_dict())
            stopped = any_rank(stop())  # an epoch may have fewer than five steps
        if saver:
            with span(emit, "checkpoint", epoch=epoch):
                saver.save(state, plain, optimizer, task, last=stopped or state.epoch == config.epochs)
            if stopped:
                saver.emit("stopped", **state.place())
                raise Stopped
    return state.epochs
