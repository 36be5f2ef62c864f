"""Ranks with different numbers of batches: the next epoch begins with one state of the optimiser on all of them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.processes import fix_openmp, fork
from tutorial_lib.tasks.task import Task
from tutorial_lib.trainer.loop import train_task
from tutorial_lib.trainer.placement import CPU

BATCHES = ([1.0, 5.0, -2.0], [3.0, 1.0], [])  # of each rank: one target each; the last has nothing to do
ORDERS = {"rank 0 makes every step": BATCHES, "rank 2 makes every step": BATCHES[::-1]}
EPOCHS = 3

pytestmark = pytest.mark.usefixtures("nothing_left")


class Targets(Task):
    """One weight, which shall be near the targets."""

    split: Any = None
    score: Any = None
    evaluate: Any = None

    def __init__(self, batches: list[float]) -> None:
        self.batches = batches

    def inputs(self, batch: float) -> tuple[Any, ...]:
        return (torch.ones(1, 1), torch.tensor([[batch]]))

    def loss(self, model: torch.nn.Module, inputs: Any) -> tuple[torch.Tensor, int]:
        one, target = inputs
        return F.mse_loss(model(one), target), 1

    def traffic(self, *_batch: Any) -> tuple[int, int]:
        return 0, 0


def start() -> tuple[torch.nn.Linear, torch.optim.Adam]:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model, torch.optim.Adam(model.parameters(), lr=0.5)


def remembered(optimizer: torch.optim.Adam) -> list[float]:
    (state,) = optimizer.state.values()
    return [state[name].item() for name in ("step", "exp_avg", "exp_avg_sq")]


def rank_main(rank: int, _ranks: int, batches: Any) -> list[list[float]]:
    model, optimizer = start()
    task, wrapped = Targets(batches[rank]), CPU.wrap(model)

    def train() -> list[float]:
        return [train_task(wrapped, optimizer, task), model.weight.item(), *remembered(optimizer)]

    return [train() for _ in range(EPOCHS)]


def in_one_process(batches: Any) -> list[list[float]]:
    """In each step, the gradients of those that have a batch, divided by the number of ranks."""
    model, optimizer = start()
    epochs = []
    for _ in range(EPOCHS):
        losses = []
        for targets in zip_longest(*batches):
            optimizer.zero_grad()
            here = [F.mse_loss(model(torch.ones(1)), torch.tensor([t])) for t in targets if t is not None]
            (sum(here) / len(batches)).backward()
            optimizer.step()
            losses += [loss.item() for loss in here]
        epochs.append([sum(losses) / len(losses), model.weight.item(), *remembered(optimizer)])
    return epochs


@pytest.mark.parametrize("order", ORDERS)
def test_all_ranks_take_the_steps_of_one_process(order: str) -> None:
    batches = ORDERS[order]
    ranks = fork(fix_openmp(rank_main), len(batches), (batches,), backend="gloo", threads=1, timeout=120)
    expected = in_one_process(batches)
    for epochs in ranks:
        for got, wanted in zip(epochs, expected, strict=True):
            assert got == pytest.approx(wanted, rel=1e-5)
