"""What is written into checkpoints by the tests and by the programs that they start."""

from __future__ import annotations

from pathlib import Path

import torch

from tutorial_lib.trainer.checkpoint import Checkpoints

SETTINGS = {"hidden_size": 8, "fanouts": [5, 5], "epochs": 3}


def trained(optimizer_class=torch.optim.Adam, steps: int = 3, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    for _ in range(steps):
        train(model, optimizer)
    return model, optimizer


def train(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).pow(2).sum().backward()
    optimizer.step()


def save(folder: Path, model, optimizer, epochs: list[dict], description=SETTINGS, **more) -> None:
    Checkpoints(folder, description).save(model, optimizer, epochs, last=True, **more)


def restore(folder: Path, model, optimizer, **more) -> list[dict]:
    return Checkpoints(folder, {}, resume=True).restore(model, optimizer, **more)


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
