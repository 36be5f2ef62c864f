"""Ranks with unequal numbers of batches: who has run out of them goes on answering the steps of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from tutorial_lib.trainer.comm import all_gather, broadcast
from tutorial_lib.trainer.state import flatten_optimizer, unflatten_optimizer


def joined(model: nn.Module, sparse_optimizers: Sequence[Any] = ()) -> AbstractContextManager:
    """The context for the steps of one epoch; does nothing unless ``model`` is a DistributedDataParallel."""
    if not isinstance(model, Joinable):
        return contextlib.nullcontext()
    return Join([model, *([SparseSteps(model, sparse_optimizers)] if sparse_optimizers else [])])


def give_missed_steps(optimizer: torch.optim.Optimizer, steps: int) -> int:
    """After an epoch: a rank that ran out of batches gets the state of one that has made every step; how many it made.

    At its end ``Join`` makes the weights of all ranks equal, but not what an optimiser remembers: Adam's means on that
    rank have missed steps. From then on the ranks would take different steps with the same gradients.
    """
    made = all_gather(steps)
    if min(made) < max(made):
        optimizer.load_state_dict(unflatten_optimizer(*broadcast(flatten_optimizer(optimizer), made.index(max(made)))))
    return max(made)


class SparseSteps(Joinable, JoinHook):
    """Steps of DGL's sparse optimisers as something that can be joined.

    DDP all-reduces gradients in each backward pass, and DGL's distributed sparse optimisers exchange the gradients of
    rows in each ``step``, with a barrier at its end. Both are collectives: every rank must take part in every one.
    ``Join`` lets a rank that has run out of batches do so for DDP; DGL's optimisers do not know it, this tells it.
    A step without gradients of one's own is a whole step: the rank still takes the gradients that others send for
    rows that it keeps, and updates those rows. Only the first joinable, ``model``, counts the steps.
    """

    def __init__(self, model: Joinable, sparse_optimizers: Sequence[Any]) -> None:
        super().__init__()
        self.model, self.sparse_optimizers = model, sparse_optimizers

    def join_hook(self, **_kwargs: Any) -> JoinHook:
        """What a rank without batches does in each step of the others."""
        return self

    def main_hook(self) -> None:
        """After DDP's own hook, as in a step: first the backward pass, then the update."""
        for optimizer in self.sparse_optimizers:
            optimizer.zero_grad()  # step() then also forgets the rows of this rank's last batch
            optimizer.step()

    @property
    def join_device(self) -> torch.device:
        """That of the model: ``Join`` asks for one device and one group."""
        return self.model.join_device

    @property
    def join_process_group(self) -> Any:
        """That of the model."""
        return self.model.join_process_group
