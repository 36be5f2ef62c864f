"""The training loop: equal steps on all ranks, steps that depend on the seeds alone, and runs that end early."""

import os
import signal
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from support.processes import fix_openmp, fork
from tutorial_lib.errors import InputError
from tutorial_lib.launcher.failure import on_first_sigterm
from tutorial_lib.sampling.loader import epoch_chunks
from tutorial_lib.tasks.task import Task
from tutorial_lib.trainer.checkpoint import CheckpointManager
from tutorial_lib.trainer.comm import equal_steps
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import no_events
from tutorial_lib.trainer.loop import Stopped, fit
from tutorial_lib.trainer.manifest import has_checkpoint, read_checkpoint

TARGETS = (23, 24, 20)  # examples of each rank
BATCH = 2
STEPS = 12
CONFIG = TrainConfig(epochs=3, learning_rate=0.1, seed=5)


class Numbers:
    """A loader whose examples are numbers."""

    def __init__(self, count: int, seed: int, steps: int) -> None:
        self.count, self.seed, self.steps = count, seed, steps

    def __len__(self) -> int:
        return self.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        chunks = epoch_chunks(self.count, self.steps, self.seed, epoch, shuffle=True)
        yield from ((step, chunks[step].float()[:, None]) for step in range(start, self.steps))


class Noisy(Task):
    """A weight that approaches the mean of the numbers, with dropout."""

    split: Any = None
    evaluate: Any = None

    def __init__(self, batches: Numbers, val: Numbers) -> None:
        self.train_loader, self.val_loader = batches, val

    def inputs(self, batch: torch.Tensor) -> tuple[Any, ...]:
        return torch.ones(len(batch), 4), batch

    def loss(self, model: torch.nn.Module, inputs: Any) -> tuple[torch.Tensor, int]:
        ones, target = inputs
        return F.mse_loss(model(F.dropout(ones, 0.5)), target), len(target)

    def score(self, model: torch.nn.Module, inputs: Any) -> tuple[float, int]:
        return float(model(inputs[0]).sum()), len(inputs[0])

    def traffic(self, *_batch: Any) -> tuple[int, int]:
        return 0, 0


def task_of(rank: int, count: int) -> Noisy:
    return Noisy(Numbers(count, rank, equal_steps(count, BATCH)), Numbers(4, rank, 2))


NOBODY = 99
# Number of calls before each rank must stop, with three calls per epoch.
STARTS = ((1, NOBODY, NOBODY), (NOBODY, NOBODY, 1), (1, 1, 1), (NOBODY, NOBODY, NOBODY))
STOPPED = [(0, 10), (1, 5), (2, 0)]


def start(rank: int, folder: Path, calls: int, told: list[Any]) -> Any:
    """Start or resume the run. Return its losses and weights, or the epoch and the step of its checkpoint."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    answers = chain([False] * calls, repeat(True))  # the loop asks after steps 5 and 10 and after each epoch
    checkpoints = CheckpointManager(folder, {}, resume=has_checkpoint(folder), stop=lambda: next(answers))

    def emit(kind: str, **fields: Any) -> None:
        if kind == "step":
            told.append((fields["epoch"], fields["step"], fields["steps"], fields["loss"]))

    try:
        wrapped = DistributedDataParallel(model)
        epochs = fit(wrapped, task_of(rank, TARGETS[rank]), CONFIG, emit=emit, checkpoints=checkpoints)
    except Stopped:
        saved = read_checkpoint(folder).manifest
        return len(saved.epochs), saved.step
    return [[(epoch.loss, epoch.val_score) for epoch in epochs], model.weight.tolist()]


def rank_main(rank: int, _ranks: int, folder: Path) -> Any:
    whole: list[Any] = []
    parts: list[Any] = []
    undisturbed = start(rank, folder / "undisturbed", NOBODY, whole)
    found = [start(rank, folder / "parts", calls[rank], parts) for calls in STARTS]
    return undisturbed, whole, found, parts


def test_ranks_take_equal_steps_and_resume_exactly(nothing_left, tmp_path):
    """L2. A run that ends in the middle of an epoch repeats no step and has equal losses after it resumes."""
    ranks = fork(fix_openmp(rank_main), len(TARGETS), (tmp_path,), backend="gloo", threads=1, timeout=120)
    for undisturbed, whole, found, parts in ranks:
        assert found == [*STOPPED, undisturbed]
        assert parts == whole
        assert [event[:3] for event in whole] == [(epoch, step, STEPS) for epoch in range(3) for step in range(STEPS)]
        assert undisturbed == ranks[0][0]
    kept = {path.name for path in (tmp_path / "parts").glob("epoch-*")}
    assert kept == {"epoch-0002", "epoch-0003"}


def steps_of_rank(rank: int, _ranks: int, counts: tuple[int, ...], batch: int) -> int | str:
    try:
        return equal_steps(counts[rank], batch)
    except InputError as error:
        return error.message.partition(",")[0]


@pytest.mark.parametrize(
    ("counts", "batch", "steps"),
    [((7, 5), 3, 3), ((100, 3), 10, 3), ((7, 0), 3, "rank 1 of 2 has no training nodes")],
)
def test_equal_steps_of_uneven_shares(counts, batch, steps):
    assert fork(fix_openmp(steps_of_rank), 2, (counts, batch), backend="gloo", threads=1) == [steps] * 2
    for count in counts if all(counts) else ():
        sizes = [len(chunk) for chunk in epoch_chunks(count, steps, 0, 0, shuffle=True)]
        assert (sum(sizes), min(sizes) >= 1, max(sizes) - min(sizes) <= 1) == (count, True, True)


def test_stop_in_epoch_of_fewer_than_five_steps(tmp_path):
    told: list[Any] = []
    checkpoints = CheckpointManager(tmp_path, {}, every=9, emit=lambda *kind, **fields: told.append((*kind, fields)))
    checkpoints.stop = lambda: True
    with pytest.raises(Stopped):
        fit(torch.nn.Linear(4, 1, bias=False), task_of(0, 4), CONFIG, emit=no_events, checkpoints=checkpoints)
    assert told == [("checkpoint", {"epochs": 1}), ("stopped", {"epochs": 1})]


class Watched(Noisy):
    """Its loss is not finite in the third step of the second epoch."""

    calls = 0

    def loss(self, model: torch.nn.Module, inputs: Any) -> tuple[torch.Tensor, int]:
        self.calls += 1
        value, count = super().loss(model, inputs)
        return value * (float("inf") if self.calls == 6 else 1.0), count

    def score(self, model: torch.nn.Module, inputs: Any) -> tuple[float, int]:
        assert not model(inputs[0]).requires_grad
        assert not model.training
        return super().score(model, inputs)


def test_nonfinite_loss_names_epoch_and_step():
    """D12, D21. Validation builds no graph of gradients, and a loss that is not finite names the epoch and the step."""
    with pytest.raises(FloatingPointError, match="loss is inf in epoch 2, step 3; try a smaller --learning-rate"):
        fit(torch.nn.Linear(4, 1), Watched(Numbers(4, 0, 3), Numbers(4, 0, 2)), CONFIG, emit=no_events)


def test_first_sigterm_is_reported_and_second_ends():
    """L2. The first SIGTERM is reported to the program and the second one ends it."""
    got: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: got.append("second"))
    try:
        with on_first_sigterm(lambda: got.append("first")):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        with on_first_sigterm(lambda: got.append("never")):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        for handler in (signal.SIG_DFL, signal.SIG_IGN):  # a program without a handler keeps its disposition
            signal.signal(signal.SIGTERM, handler)
            with on_first_sigterm(lambda: None):
                assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == ["first", "second", "second"]
