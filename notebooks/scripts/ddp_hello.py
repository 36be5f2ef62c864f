"""Print each rank and a sum over all ranks. Run torchrun --standalone --nproc_per_node 2 scripts/ddp_hello.py."""

import os

import torch
import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")  # returns when all ranks have called it
rank, world_size = dist.get_rank(), dist.get_world_size()
number = torch.tensor([10.0**rank])
dist.all_reduce(number)  # every rank gets the sum over all ranks
port = "a port" if int(os.environ["MASTER_PORT"]) else "no port"
told = f"rank {rank} of {world_size}, met at {os.environ['MASTER_ADDR']} and {port}: the sum is {number.item():g}"
print(told + "\n", end="", flush=True)  # one write per line, because all ranks print at the same time
leave()  # exits the process (the summary of the lesson gives the reason)
