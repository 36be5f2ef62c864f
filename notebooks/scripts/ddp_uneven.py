"""Fit y = w with one weight on two ranks, one example per batch. Rank 0 has three batches, and rank 1 has five."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

TARGETS = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 8.0])


def fit(model, targets):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for step, target in enumerate(targets):
        print(f"rank {dist.get_rank()} step {step}\n", end="", flush=True)  # a single write, because both ranks print
        loss = (model(torch.ones(1, 1)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    soon = dist.new_group(timeout=timedelta(seconds=3))  # the default is 30 minutes
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=soon)
    torch.nn.init.zeros_(model.module.weight)
    fit(model, TARGETS[dist.get_rank()])
    print(f"rank {dist.get_rank()} is through and does something else\n", end="", flush=True)
    time.sleep(6)
