"""The training loop: one, for every task, for one process and for many."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.comm import own_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, OnBatch, Pulse, StepLog, no_events, span
from tutorial_lib.trainer.seeding import start_epoch
from tutorial_lib.trainer.stopping import EpochPart, EpochStopped, Stop
from tutorial_lib.trainer.uneven import give_missed_steps, joined


class Trainable(Protocol):
    """What the loop needs of a task. ``tasks.task.Task`` implements it."""

    batches: Any
    sparse_optimizers: Sequence[Any]
    embeddings: Mapping[str, Any]

    def inputs(self, batch: Any) -> tuple[Any, ...]: ...
    def loss(self, model: nn.Module, inputs: Any) -> tuple[Tensor, int]: ...
    def traffic(self, batch: Any, inputs: Any) -> tuple[int, int]: ...
    def validate(self, model: nn.Module, on_batch: OnBatch = ...) -> float: ...


@dataclass
class EpochResult:
    """One epoch, over all ranks: mean loss per example, seconds of the training part, score with sampled neighbours."""

    epoch: int
    loss: float
    seconds: float
    val_score: float
    score: str = "accuracy"

    @property
    def val_accuracy(self) -> float | None:
        """The score where it is an accuracy."""
        return self.val_score if self.score == "accuracy" else None

    def to_dict(self) -> dict[str, Any]:
        """As in ``result.json`` and in checkpoints."""
        return {name: getattr(self, name) for name in ("epoch", "loss", "seconds", "val_score", "val_accuracy")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], score: str) -> EpochResult:
        """Inverse of ``to_dict``. Checkpoints of before call every score ``val_accuracy``."""
        found = values["val_score" if "val_score" in values else "val_accuracy"]
        return cls(values["epoch"], values["loss"], values["seconds"], found, score)


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


def train_task(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Trainable,
    *,
    epoch: int = 0,
    emit: Emit = no_events,
    part: EpochPart | None = None,
    stop: Stop | None = None,
) -> float:
    """One pass; returns the mean loss per example over all ranks. Each step is an event, see ``events``.

    Under ``Join`` a rank that runs out of batches answers the all-reduces of the others, and their exchanges of
    gradients of rows, until they are through; without it they would wait for it for ever.

    Args:
        part: what this rank has done of the epoch before; afterwards, what it has done by now.
        stop: may end the pass early; then ``part.stopped``, and the loss is that of the steps so far.

    Raises:
        FloatingPointError: this rank's loss is not a finite number.
    """
    model.train()
    part, stop = part or EpochPart(), stop or Stop()
    log = StepLog(emit, epoch, len(task.batches), part.steps)
    with joined(model, task.sparse_optimizers):
        for batch in part.rest(task.batches, task.inputs):
            log.lap("sampling", batch=batch)
            inputs = task.inputs(batch)
            log.lap("pull")
            loss, examples = task.loss(model, inputs)
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
            part.add(value, examples)
            log.done(value, *task.traffic(batch, inputs))
            if stop.here(epoch, part.steps):
                part.stopped = part.steps < len(task.batches)
                break
        else:
            stop.through(epoch)
    part.furthest = give_missed_steps(optimizer, part.steps)
    total, examples, with_more, told = sum_over_ranks([part.loss_sum, part.examples, part.stopped, stop.heard])
    part.stopped, part.last = with_more > 0, told > 0
    log.close()
    return total / examples


def finite(loss: float, epoch: int, step: int) -> float:
    """The loss; a FloatingPointError that says where and what to do if it is not a finite number."""
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
    saver: Checkpoints | None = None,
    score: str = "accuracy",
) -> list[EpochResult]:
    """Train until ``config.epochs`` epochs are finished, those of a checkpoint included; returns all of them.

    Args:
        model: one of ``models``, or one wrapped in DistributedDataParallel.
        emit: takes the events of steps, of validation and, on rank 0, of epochs.
        saver: keeps checkpoints, and may have one to continue from.
        score: name of what ``task.validate`` gives.

    Raises:
        EpochStopped: ``saver.stop`` said so; there is a checkpoint, most often from the middle of an epoch.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    # Evaluation must not go through DDP: its forward would expect a backward on every rank.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    rows = {"embeddings": task.embeddings, "sparse_optimizers": task.sparse_optimizers}
    part = EpochPart()
    restored = saver.restore(plain, optimizer, part=part, **rows) if saver else []
    results = [EpochResult.from_dict(epoch, score) for epoch in restored]
    for epoch in range(len(results), config.epochs):
        start_epoch(config.seed, epoch)
        start = time.perf_counter()
        loss = train_task(model, optimizer, task, epoch=epoch, emit=emit, part=part, stop=saver and saver.stop)
        part.seconds += time.perf_counter() - start
        if part.stopped:
            part.keep_generators(next(plain.parameters()).device)
        else:
            with span(emit, "validation", epoch=epoch):
                found = task.validate(plain, Pulse(emit, "validation"))
            results.append(EpochResult(epoch, loss, part.seconds, found, score))
            if own_rank() == 0:
                emit("epoch", score=score, **results[-1].to_dict())
        if saver:
            finished, last = [result.to_dict() for result in results], part.last or epoch == config.epochs - 1
            with span(emit, "checkpoint", epoch=epoch):
                saver.save(plain, optimizer, finished, last=last, part=part if part.stopped else None, **rows)
        if part.last:  # also where it was over before the ranks could agree on a step: one of few steps
            raise EpochStopped
        part = EpochPart()
    return results
