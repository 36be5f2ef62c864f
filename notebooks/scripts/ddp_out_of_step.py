"""Rank 0 sums a gradient. Rank 1 has no batch left and sums its numbers of correct answers and examples."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    tensor = torch.tensor([0.5, -0.25])
else:
    tensor = torch.tensor([180.0, 256.0])
if "--same-length" not in sys.argv and dist.get_rank() == 0:
    tensor = torch.cat([tensor, torch.zeros(1)])  # this gradient has three elements
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} holds {tensor.tolist()}\n", end="", flush=True)
