"""What the training loop asks of others: a task to learn, and somebody who keeps checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tutorial_lib.trainer.steps import OnBatch


class Saver(Protocol):
    """What ``fit`` asks of checkpoints; ``checkpoint.Checkpoints`` is one. Epochs are dicts of JSON types."""

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Sequence[dict[str, Any]]:
        """Load the state to continue from and return its finished epochs; none when there is nothing to continue."""
        ...

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: Sequence[dict[str, Any]], *, last: bool
    ) -> None:
        """Called after each epoch, with all that are finished."""
        ...


class Task(Protocol):
    """What is learned, and from which batches; the loop knows no more of it. ``node.NodeTask`` is one.

    Attributes:
        batches: this rank's batches of one epoch, with a length, in an order that torch's generator gives when they
            are iterated.
        sparse_optimizers: those of DistEmbeddings; they step after the dense one.
    """

    batches: Any
    sparse_optimizers: Sequence[Any]

    def prepare(self, batch: Any) -> Any:
        """Pull the rows that a batch needs, and move it to where the model is."""
        ...

    def loss(self, model: nn.Module, prepared: Any) -> tuple[Tensor, int]:
        """Mean loss over the examples of a batch, and their number."""
        ...

    def traffic(self, batch: Any, prepared: Any) -> tuple[int, int]:
        """Bytes of rows that ``prepare`` took from this machine and from others."""
        ...

    def validate(self, model: nn.Module, on_batch: OnBatch) -> float:
        """A score over all ranks, the larger the better; every rank calls it."""
        ...
