"""Task that the programs of lesson 05 share, a small network and 100 points in three classes, in batches of 24."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def points():
    """Return x of shape (100, 4) and the classes y of shape (100,), equal in every process."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 4, generator=generator)
    return x, (x @ torch.randn(4, 3, generator=generator)).argmax(1)


def new_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))


def batches():
    """Return the IDs of each step for all ranks together, four batches of 24 and one of 4."""
    return torch.arange(100).split(24)


def mean_loss(loss, examples):
    """Return the mean loss over the examples of all ranks. The ranks add losses and counts before the division."""
    sums = torch.tensor([loss.item() * examples, examples], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def keep(name, losses, model):
    """Save the losses and the final weights of this rank in scripts/out/. Rank 0 also prints the losses."""
    out = Path(__file__).with_name("out")
    out.mkdir(exist_ok=True)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    torch.save({"losses": losses, "weights": weights}, out / f"{name}-{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        print("loss of each step:", *(f"{loss:.4f}" for loss in losses))
