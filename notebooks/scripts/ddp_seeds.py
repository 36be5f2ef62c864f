"""Compare the ranks' initial weights, weights after DDP(model) and dropout masks for three choices of seeds."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from leave import leave


def same(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return "equal" if all(torch.equal(part, parts[0]) for part in parts) else "different"


dist.init_process_group("gloo")
for name, seed in (("the same seed", 7), ("seed + rank", 7 + dist.get_rank()), ("no seed", torch.seed())):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    found = [same(model.weight.detach().clone())]
    DistributedDataParallel(model)
    found += [same(model.weight.detach()), same(F.dropout(torch.ones(120), 0.5))]
    if dist.get_rank() == 0:
        print(f"{name:14} first weights {found[0]:10} after DDP {found[1]:10} dropout {found[2]}")
leave()
