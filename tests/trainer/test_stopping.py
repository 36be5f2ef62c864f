"""Runs that are told to end in the middle of an epoch: the agreement of the ranks, and what each goes on from."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from support.processes import fix_openmp, fork
from tutorial_lib.errors import first_sigterm
from tutorial_lib.tasks.task import Task
from tutorial_lib.trainer import generations, stopping
from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import fit
from tutorial_lib.trainer.stopping import EpochStopped, Stop

COUNTS = (12, 6, 0)  # batches of each rank
CONFIG = TrainConfig(epochs=3, learning_rate=0.1)
# Per start: the epoch in which somebody asks, and after how many of its steps each rank hears of it.
NOBODY = (9, (0, 0, 0))
EARLY, LATE = (0, (1, 3, 0)), (1, (7, 6, 0))  # LATE: rank 1 has run out of batches by then


class Numbers:
    """Batches in an order from torch's generator."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[float]:
        yield from map(float, torch.randperm(self.count))


class Noisy(Task):
    """A weight that shall be near the number of the batch, through dropout."""

    split: Any = None
    evaluate: Any = None

    def __init__(self, batches: Any, val: Any) -> None:
        self.batches, self.val = batches, val

    def inputs(self, batch: float) -> tuple[Any, ...]:
        return torch.ones(1, 4), torch.tensor([[batch]])

    def loss(self, model: torch.nn.Module, inputs: Any) -> tuple[torch.Tensor, int]:
        ones, target = inputs
        return F.mse_loss(model(F.dropout(ones, 0.5)), target), 1

    def score(self, model: torch.nn.Module, inputs: Any) -> tuple[float, int]:
        return float(model(inputs[0])) + float(torch.rand(())), 1

    def traffic(self, *_batch: Any) -> tuple[int, int]:
        return 0, 0


class Hears(Stop):
    """Told to end in an epoch, after some of its steps."""

    def __init__(self, epoch: int, step: int) -> None:
        super().__init__(lambda: self.now >= (epoch, step))
        self.now = (-1, 0)

    def here(self, epoch: int, step: int) -> bool:
        self.now = epoch, step
        return super().here(epoch, step)


def start(rank: int, folder: Path, number: int, asked: tuple[int, tuple[int, ...]], told: list[Any]) -> list[Any]:
    """One start of the run; its epochs and weights, or the epochs and the steps after which it was stopped."""
    store = stopping._store()
    stopping.LOOK_SECONDS = 0
    stopping._store = lambda: dist.PrefixStore(f"start-{number}", store)  # each start of a job has its own
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    saver = Checkpoints(folder, {}, resume=generations.exists(folder))
    saver.stop = Hears(asked[0], asked[1][rank])

    def emit(kind: str, **fields: Any) -> None:
        if kind == "step":
            told.append((fields["epoch"], fields["step"], fields["loss"]))

    task = Noisy(Numbers(COUNTS[rank]), Numbers(2))
    dist.barrier()
    try:
        epochs = fit(DistributedDataParallel(model), task, CONFIG, emit=emit, saver=saver)
    except EpochStopped:
        saved = generations.read_checkpoint(folder)
        return [len(saved.epochs), saved.step]
    finally:
        stopping._store = lambda: store
    return [[(epoch.loss, epoch.val_score) for epoch in epochs], model.weight.tolist()]


def rank_main(rank: int, _ranks: int, folder: Path) -> Any:
    whole: list[Any] = []
    undisturbed = start(rank, folder / "undisturbed", 0, NOBODY, whole)
    parts: list[Any] = []
    found = [start(rank, folder / "parts", k, asked, parts) for k, asked in enumerate((EARLY, LATE, NOBODY), start=1)]
    return undisturbed, whole, found, parts


def test_ranks_with_uneven_batches_stop_at_one_step_and_go_on_with_equal_losses(nothing_left, tmp_path):
    ranks = fork(fix_openmp(rank_main), len(COUNTS), (tmp_path,), backend="gloo", threads=1, timeout=120)
    for count, (undisturbed, whole, found, parts) in zip(COUNTS, ranks, strict=True):
        assert found == [[0, 3 + 2], [1, 7 + 2], undisturbed]  # two steps after the last rank has heard of it
        assert parts == whole  # every step once, with the same loss
        assert len(whole) == CONFIG.epochs * count
    kept = {path.name for path in (tmp_path / "parts").glob("epoch-*")}
    assert kept == {"epoch-0002", "epoch-0003"}  # those of the steps have gone


def test_an_epoch_that_is_over_before_the_ranks_agree_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "LOOK_SECONDS", 0)
    told: list[Any] = []
    saver = Checkpoints(tmp_path, {}, every=9, emit=lambda *kind, **fields: told.append((*kind, fields)))
    saver.stop = Stop(lambda: True)
    with pytest.raises(EpochStopped):
        fit(torch.nn.Linear(4, 1, bias=False), Noisy(Numbers(1), Numbers(2)), CONFIG, saver=saver)
    assert told == [("checkpoint", {"epochs": 1})]


def test_the_first_sigterm_is_told_and_the_second_does_what_it_did():
    """L2. The first SIGTERM is reported to the program and the second one ends it."""
    before, got = signal.getsignal(signal.SIGTERM), []
    signal.signal(signal.SIGTERM, lambda *_: got.append("second"))
    try:
        with first_sigterm(lambda: got.append("first")):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        with first_sigterm(lambda: got.append("never")):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == ["first", "second", "second"]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_without_a_handler_keeps_what_it_has(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with first_sigterm(lambda: None):
            assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)
