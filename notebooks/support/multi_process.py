"""Data-parallel training on one machine: what each rank of ``processes.spawn`` or ``processes.fork`` runs.

train_rank
  ├─ share_of              this rank's training nodes, a new share in each epoch
  ├─ train_epoch           the steps, under Join: numbers of batches may differ between ranks
  ├─ NodeTask.validate     validation on all ranks, counts summed
  └─ save_best             rank 0 keeps the best model
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.batches.nodes import Batch, BatchLoader
from tutorial_lib.data import Dataset, load_dataset
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.tasks.node import NodeTask, TrainData
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.exchange import accuracy, sum_over_ranks
from tutorial_lib.trainer.loop import EpochResult, train_task
from tutorial_lib.trainer.seeding import seed_rank


@dataclass
class RankResult:
    """What one rank brings home.

    Attributes:
        epochs: equal on all ranks but for ``seconds``.
        best: number of the epoch with the best validation accuracy, whose model was saved.
        visited: with ``log_visits``, per epoch the int64 ids of the seed nodes that this rank trained on.
    """

    rank: int
    epochs: list[EpochResult]
    best: int
    visited: list[Tensor] = field(default_factory=list, repr=False)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: TrainData,
    loader: BatchLoader,
    *,
    epoch: int = 0,
    emit: Emit = no_events,
) -> float:
    """``train_task`` for node classification with the batches of ``loader``."""
    return train_task(model, optimizer, NodeTask(data, loader), epoch=epoch, emit=emit)


def share_of(ids: Tensor, rank: int, world_size: int, *, seed: int | None = None) -> Tensor:
    """This rank's share of some ids: every id is in exactly one share, and sizes differ by at most one.

    DGL's tutorial takes ``len(ids) // world_size`` ids for each rank, which drops the remainder.

    Args:
        ids: (n,), the same on every rank.
        rank, world_size: which share of how many.
        seed: shuffle first; must be the same on every rank. A new one in each epoch gives new shares. None: in order.

    Returns:
        (ceil or floor of n / world_size,), dtype as ``ids``; empty where there are fewer ids than ranks.

    Raises:
        ValueError: rank outside [0, world_size).
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), it is {rank}")
    if seed is not None:
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    return ids[rank::world_size].contiguous()


def distributed_accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Share of correct predictions over all ranks; every rank must call it, with its own part.

    Counts are summed, not accuracies averaged: the shares need not have the same size.

    Args:
        predictions, labels: (n,) class numbers of this rank's part; n may be 0.

    Returns:
        The same number on every rank; NaN where no rank has a node.
    """
    correct = int((predictions == labels).sum())
    return accuracy(*sum_over_ranks([correct, len(labels)]))


class VisitLog:
    """Hands on the batches of a loader and remembers their seed nodes."""

    def __init__(self, loader: BatchLoader) -> None:
        self.loader = loader
        self.seeds: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            self.seeds.append(batch.seeds)
            yield batch


def save_best(model: GraphSAGE, path: Path) -> None:
    """Write the weights (safetensors: loading runs no code). A reader sees the old file or the new one, never half."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(model.state_dict(), temporary)
    temporary.replace(path)


def load_best(path: str | Path, dataset: Dataset, config: TrainConfig) -> GraphSAGE:
    """The model that ``train_rank`` saved.

    Raises:
        FileNotFoundError: no such file.
    """
    from safetensors.torch import load_file

    model = config.model(dataset.num_features, dataset.num_classes)
    model.load_state_dict(load_file(path))
    return model


def hush_dgl() -> None:
    """No advice on CPU affinity from each loader of each rank in each epoch."""
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity")


def train_rank(
    rank: int,
    world_size: int,
    dataset: Dataset | str,
    config: TrainConfig,
    model_path: str | Path | None = None,
    log_visits: bool = False,
) -> RankResult:
    """Train GraphSAGE on the CPU in this rank; needs the default process group::

        results = spawn(train_rank, 2, ("synthetic-products", config, "best.safetensors"), backend="gloo")
        results = fork(fix_openmp(train_rank), 2, (prepared_dataset, config), backend="gloo")

    One step averages the gradients of ``world_size`` batches: divide ``config.batch_size`` by the number of ranks to
    take the same steps as one process.

    Args:
        dataset: a data set (a forked rank shares its memory), or a name or path that each rank loads.
        model_path: where rank 0 saves the model of the best epoch; None: nowhere.
        log_visits: remember which nodes were trained on.
    """
    if isinstance(dataset, str):
        dataset = load_dataset(dataset)
    seed_rank(config.seed, rank)
    graph = dataset.graph
    train, val = (graph.ndata[f"{name}_mask"].nonzero().flatten() for name in ("train", "val"))
    data = TrainData(graph, graph.ndata["feat"], graph.ndata["label"], train, share_of(val, rank, world_size))
    plain = config.model(dataset.num_features, dataset.num_classes)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    val_loader = BatchLoader(graph, data.val, config.fanouts, config.batch_size)
    result = RankResult(rank, [], 0)
    for epoch in range(config.epochs):
        data.train = share_of(train, rank, world_size, seed=config.seed * 100_003 + epoch)
        loader = VisitLog(BatchLoader(graph, data.train, config.fanouts, config.batch_size, shuffle=True))
        done = run_epoch(epoch, model, plain, optimizer, data, loader, val_loader)
        result.epochs.append(done)
        if log_visits:
            result.visited.append(torch.cat(loader.seeds) if loader.seeds else train[:0])
        if epoch == 0 or done.val_score > result.epochs[result.best].val_score:
            result.best = epoch
            if rank == 0 and model_path is not None:
                save_best(plain, Path(model_path))
    return result


def run_epoch(
    epoch: int,
    model: DistributedDataParallel,
    plain: GraphSAGE,
    optimizer: torch.optim.Optimizer,
    data: TrainData,
    loader: VisitLog,
    val_loader: BatchLoader,
) -> EpochResult:
    """One training pass and its validation. That uses the plain model: DDP's forward would expect a backward."""
    hush_dgl()
    start = time.perf_counter()
    loss = train_epoch(model, optimizer, data, loader)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    hush_dgl()  # again: the end of Join puts a filter of its own before all others
    return EpochResult(epoch, loss, seconds, NodeTask(data, val_loader, val_loader).validate(plain))
