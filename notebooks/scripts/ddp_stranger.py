"""Sum the numbers of two ranks. Usage for each rank: python scripts/ddp_stranger.py RANK PORT NUMBER"""

import sys

import torch
import torch.distributed as dist

from leave import leave

rank, port, number = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
total = torch.tensor(number)
dist.all_reduce(total)
print(f"rank {rank} brought {number:4} and got {total.item()}\n", end="", flush=True)
leave()
