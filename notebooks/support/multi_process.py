"""What a rank needs that trains with others on one machine, its share and its best model; and a folder for a lesson."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from tutorial_lib.batches.nodes import BatchLoader
from tutorial_lib.data import Dataset
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.tasks.node import NodeTask, TrainData
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.exchange import accuracy, sum_over_ranks
from tutorial_lib.trainer.loop import train_task


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


def save_best(model: GraphSAGE, path: Path) -> None:
    """Write the weights (safetensors: loading runs no code). A reader sees the old file or the new one, never half."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(model.state_dict(), temporary)
    temporary.replace(path)


def load_best(path: str | Path, dataset: Dataset, config: TrainConfig) -> GraphSAGE:
    """The model that ``save_best`` has written.

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


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process, however it ends: a small one waits for that, then removes the folder."""
    folder = tempfile.TemporaryDirectory()
    program = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    folder.watcher = subprocess.Popen(  # type: ignore[attr-defined]
        [sys.executable, "-c", program, folder.name],
        stdin=subprocess.PIPE,  # closed by the kernel when the last process that holds it has ended
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return folder
