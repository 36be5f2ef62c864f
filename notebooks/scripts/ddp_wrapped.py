"""Train the same model with DistributedDataParallel, which averages the gradients in backward()."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from ddp_task import batches, keep, mean_loss, new_model, points
from leave import leave


def weighted_loss(scores, labels, of_all):
    """Return a loss in which each example has weight 1 / of_all after DDP has divided by the world size."""
    return F.cross_entropy(scores, labels) * len(labels) * dist.get_world_size() / of_all


def wrap(model, rank):
    """Return the DDP model, on GPU number rank if each rank has a GPU, or on the CPU without device_ids."""
    if torch.cuda.device_count() < dist.get_world_size():
        return DistributedDataParallel(model)
    torch.cuda.set_device(rank)
    return DistributedDataParallel(model.to(rank), device_ids=[rank], output_device=rank)


def train(name, loss_of, hook=None):
    gpus = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = wrap(new_model(), rank)
    if hook:
        model.register_comm_hook(None, hook)
    x, y = (part.to(rank) if gpus else part for part in points())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in batches():
        mine = batch[rank::world_size]
        scores = model(x[mine])
        loss = loss_of(scores, y[mine], len(batch))
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients here
        optimizer.step()
        losses.append(mean_loss(F.cross_entropy(scores, y[mine]), len(mine)))
    keep(name, losses, model)


if __name__ == "__main__":
    train("wrapped", weighted_loss)
    leave()
