"""Train data parallel without DDP. With --alone, the ranks do not average their gradients."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddp_task import batches, keep, mean_loss, new_model, points
from leave import leave


def average_gradients(model, examples):
    """Replace each gradient by its plain mean over all ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train(name, average):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, y = points()
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in batches():
        mine = batch[rank::world_size]  # the share of this rank
        loss = F.cross_entropy(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        average(model, len(mine))
        optimizer.step()
        losses.append(mean_loss(loss, len(mine)))
    keep(name, losses, model)
    leave()


if __name__ == "__main__":
    if "--alone" in sys.argv:
        train("alone", lambda *_: None)
    else:
        train("by_hand", average_gradients)
