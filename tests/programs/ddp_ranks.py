"""A program of torch.distributed without a graph: DistributedDataParallel, or with ``rpc`` remote calls."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel


def train(rank: int) -> None:
    """Train a linear model whose replicas stay equal. Rank 0 leaves first."""
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weight = next(model.parameters()).detach().clone()
    dist.all_reduce(weight)
    same = torch.allclose(weight / dist.get_world_size(), next(model.parameters()))
    print(f"rank {rank} of {dist.get_world_size()} on {os.uname().nodename}: equal replicas {same}", flush=True)
    dist.barrier()
    if rank > 0:  # rank 0 holds the store and ends before the others
        time.sleep(1)
    dist.destroy_process_group()


def call(rank: int, world_size: int) -> None:
    """Add two tensors on the next rank."""
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    total = rpc.rpc_sync(f"worker{(rank + 1) % world_size}", torch.add, args=(torch.ones(2), rank))
    print(f"rank {rank} got {total.tolist()}", flush=True)
    rpc.shutdown()


if "rpc" in sys.argv:
    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])
    call(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
else:
    train(int(os.environ["RANK"]))
