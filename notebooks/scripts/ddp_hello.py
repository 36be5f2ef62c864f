"""torchrun --standalone --nproc_per_node 2 scripts/ddp_hello.py: ranks say who they are, and add one number each."""

import os

import torch
import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")  # meets the others, and returns when all are there
rank, world_size = dist.get_rank(), dist.get_world_size()
number = torch.tensor([10.0**rank])
dist.all_reduce(number)  # the sum over all ranks, on every rank
port = "a port" if int(os.environ["MASTER_PORT"]) else "no port"
told = f"rank {rank} of {world_size}, met at {os.environ['MASTER_ADDR']} and {port}: the sum is {number.item():g}"
print(told + "\n", end="", flush=True)  # in one piece: all ranks print at once
leave()  # the end of a rank; the summary says why that takes a function
