"""Call four collectives on copies of a small tensor, and write the results of each rank to a file."""

import json
from pathlib import Path

import torch
import torch.distributed as dist

from leave import leave

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
start = torch.tensor([1.0, 2.0]) * 10**rank
held = {"at the start": start.tolist()}

tensor = start.clone()
dist.broadcast(tensor, src=0)
held["broadcast(t, src=0)"] = tensor.tolist()

tensor = start.clone()
dist.reduce(tensor, dst=0)
held["reduce(t, dst=0)"] = tensor.tolist()

tensor = start.clone()
dist.all_reduce(tensor)
held["all_reduce(t)"] = tensor.tolist()

parts = [torch.empty_like(start) for _ in range(world_size)]
dist.all_gather(parts, start)
held["all_gather(parts, t)"] = torch.cat(parts).tolist()

dist.barrier()  # returns when all ranks have called it
out = Path(__file__).with_name("out")
out.mkdir(exist_ok=True)
(out / f"collectives-{rank}.json").write_text(json.dumps(held))
leave()
