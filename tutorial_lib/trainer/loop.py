"""The training loop for every task, in one process and in a job.

Random numbers depend on (seed, epoch, step, rank) alone, because the state of DGL's generators cannot be saved. A
resumed run then samples the batches of an uninterrupted run, if each trainer has one sampling thread and no server
samples without a seed, see ``neighbors.SampleRequest``. DGL's own requests carry none.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from dgl.distributed import DistTensor, rpc
from torch import Tensor, nn

from tutorial_lib.compat.settings import derive_seed, seed_dgl
from tutorial_lib.files import JsonObject
from tutorial_lib.sampling.neighbors import SampleRequest, receive_responses
from tutorial_lib.trainer.checkpoint import CheckpointManager, Trainable, TrainState
from tutorial_lib.trainer.comm import any_rank, barrier, get_rank, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import SCORES, Emit, ProgressReporter, StepTimer, no_events, span
from tutorial_lib.trainer.manifest import EpochResult

STEPS_BETWEEN_STOP_CHECKS = 5
ROWS_PER_READ = 100_000  # in an evaluation


@dataclass
class TrainResult:
    """Exact scores over all ranks and the arrays to save. In a single process, also the epochs and the model."""

    val_score: float
    test_score: float
    predictions: Tensor | None = None  # (N,) or (N, outputs) in the order of the data set, on rank 0
    scores: dict[str, float] = field(default_factory=dict)  # other scores by name
    score_name: str = "accuracy"  # see ``Task.score_name``
    epochs: list[EpochResult] = field(default_factory=list)
    model: nn.Module = field(default_factory=nn.Identity, repr=False)
    embeddings: Tensor | DistTensor | None = field(default=None, repr=False)  # float32 (N, D) if a task learns them
    original_ids: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)  # data set's ID of each embedding
    test_edges: dict[str, Tensor] = field(default_factory=dict, repr=False)  # "edge" and "rank", of link prediction

    def summary(self) -> JsonObject:
        """Return the fields of an ``evaluation`` event and of ``result.json``."""
        scores = self.val_score, self.test_score
        accuracies = scores if self.score_name == "accuracy" else (None, None)
        return dict(zip(SCORES, (self.score_name, *scores, *accuracies, self.scores), strict=True))

    def save(self, out: Path) -> None:
        if self.predictions is not None:
            np.save(out / "predictions.npy", self.predictions.numpy())
        if self.test_edges:
            np.savez(out / "test_edges.npz", **self.test_edges)
        if self.embeddings is not None:
            rows = np.lib.format.open_memmap(out / "embeddings.npy", "w+", np.float32, tuple(self.embeddings.shape))
            for ids in torch.arange(len(rows)).split(ROWS_PER_READ):
                rows[self.original_ids[ids.numpy()]] = self.embeddings[ids].numpy()
            rows.flush()


class Stopped(Exception):
    """Raised when all ranks have stopped after the same step and saved a checkpoint, because a rank had to stop."""


def seed_all(seed: int, epoch: int, step: int, rank: int) -> None:
    step_seed = derive_seed(seed, epoch, step, rank)
    torch.manual_seed(step_seed)
    seed_dgl(step_seed)
    np.random.seed(step_seed)


def seed_servers(seed: int, epoch: int) -> None:
    """Seed the generators of all DGL servers from rank 0. No rank samples before they are seeded."""
    if get_rank() == 0:
        sent = {}
        for server in range(rpc.get_num_server()):
            sent[rpc.get_msg_seq()] = server  # the next request gets this number
            rpc.send_request(server, SampleRequest(derive_seed(seed, epoch, 2**20 + server)))  # no step has this number
        receive_responses(sent, "generators to be seeded")
    barrier()


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
    """Train from ``state.step`` to the end of the epoch. Return True if the ranks stopped before the end."""
    model.train()
    epoch, steps = len(state.epochs), len(task.train_loader)
    optimizers = [optimizer, *task.sparse_optimizers]
    timer = StepTimer()
    for step, batch in task.train_loader.batches(epoch, state.step):
        timer.lap("sampling", getattr(batch, "background", None))
        seed_all(seed, epoch, step, get_rank())
        inputs = task.inputs(batch)
        timer.lap("pull")
        loss, examples = task.loss(model, inputs)
        loss_value = check_finite(loss.item(), epoch, step)
        timer.lap("forward")
        for optim in optimizers:
            optim.zero_grad()
        loss.backward()
        timer.lap("backward")
        for optim in optimizers:
            optim.step()
        timer.lap("update")
        state.step = step + 1
        state.examples += examples
        state.loss_sum += loss_value * examples
        local, remote = task.traffic(batch, inputs)
        fields = {**timer.fields, "bytes_local": local, "bytes_remote": remote}
        emit("step", epoch=epoch, step=step, steps=steps, loss=loss_value, **fields)
        timer = StepTimer()
        if step % STEPS_BETWEEN_STOP_CHECKS == STEPS_BETWEEN_STOP_CHECKS - 1 and step < steps - 1 and any_rank(stop()):
            return True
    return False


def check_finite(loss: float, epoch: int, step: int) -> float:
    if not math.isfinite(loss):
        advice = "try a smaller --learning-rate, or check the features for values that are not finite"
        raise FloatingPointError(f"loss is {loss} in epoch {epoch + 1}, step {step + 1}; {advice}")
    return loss


def fit(
    model: nn.Module, task: Trainable, config: TrainConfig, *, emit: Emit, checkpoints: CheckpointManager | None = None
) -> list[EpochResult]:
    """Train a ``Task`` until ``config.epochs`` epochs are finished. Return their results, or raise Stopped."""
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    # Validation must not go through DDP, whose forward pass expects a backward pass on every rank.
    unwrapped_model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    state = checkpoints.load_latest(unwrapped_model, optimizer, task) if checkpoints else TrainState()
    stop = checkpoints.stop if checkpoints else lambda: False
    while state.epoch < config.epochs:
        seed_servers(config.seed, state.epoch)
        epoch = state.epoch
        start = time.perf_counter()
        stopped = train_epoch(model, optimizer, task, state, seed=config.seed, emit=emit, stop=stop)
        state.seconds += time.perf_counter() - start
        if not stopped:
            total, examples = sum_over_ranks([state.loss_sum, state.examples])
            with span(emit, "validation", epoch=epoch):
                score = task.validate(unwrapped_model, ProgressReporter(emit, "validation"), epoch=epoch)
            accuracy = score if task.score_name == "accuracy" else None
            result = EpochResult(epoch, total / examples, state.seconds, score, accuracy)
            state = TrainState([*state.epochs, result])
            if get_rank() == 0:
                emit("epoch", score=task.score_name, **asdict(result))
            stopped = any_rank(stop())  # an epoch may have fewer than five steps
        if checkpoints:
            with span(emit, "checkpoint", epoch=epoch):
                checkpoints.save(state, unwrapped_model, optimizer, task, last=stopped or state.epoch == config.epochs)
            if stopped:
                checkpoints.emit("stopped", **state.position())
                raise Stopped
    return state.epochs
