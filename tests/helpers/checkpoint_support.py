"""Small models and checkpoints for tests."""

from pathlib import Path
from types import SimpleNamespace

import torch

from tutorial_lib.trainer.checkpoint import CheckpointManager, TrainState
from tutorial_lib.trainer.manifest import EpochResult

SETTINGS = {"hidden_size": 8, "fanouts": [5, 5], "epochs": 3}


def train_small_model(steps: int = 3) -> tuple[torch.nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).pow(2).sum().backward()
        optimizer.step()
    return model, optimizer


NO_ROWS = SimpleNamespace(embeddings={}, sparse_optimizers=[])


def make_epochs(count: int) -> list[EpochResult]:
    return [EpochResult(epoch=k, loss=1.0, seconds=1.0, val_score=0.5) for k in range(count)]


def save(folder: Path, model, optimizer, epochs: int | TrainState, description=SETTINGS, task=NO_ROWS) -> None:
    """Save after this number of epochs, or in this state."""
    state = TrainState(make_epochs(epochs)) if isinstance(epochs, int) else epochs
    CheckpointManager(folder, description).save(state, model, optimizer, task, last=True)


def load(folder: Path, model, optimizer, task=NO_ROWS, **options) -> TrainState:
    return CheckpointManager(folder, {}, resume=True, **options).load_latest(model, optimizer, task)


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
