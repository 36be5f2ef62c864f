"""Print how two ranks differ before DDP wraps a model, after its constructor, and after a forward pass."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from leave import leave


def different(model):
    """Return the names of the parameters and buffers that differ from rank 0 on any rank."""
    names = []
    for name, tensor in model.state_dict().items():
        of_rank_0 = tensor.clone()
        dist.broadcast(of_rank_0, src=0)
        differs = torch.tensor([not torch.equal(tensor, of_rank_0)], dtype=torch.int32)
        dist.all_reduce(differs)
        names += [name] if differs else []
    return ", ".join(names) or "nothing"


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # each rank gets different initial weights
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
model[1].running_mean += rank  # a buffer, which belongs to the model but is not trained
moments = {"before DDP": different(model)}
ddp = DistributedDataParallel(model)
moments["after DDP(model)"] = different(model)
if rank == 1:
    with torch.no_grad():
        model[0].bias += 5
        model[1].running_mean += 5
moments["rank 1 adds 5"] = different(model)
ddp.eval()(torch.zeros(2, 4))
moments["after a forward"] = different(model)
if rank == 0:
    for moment, names in moments.items():
        print(f"{moment:17} the ranks differ in {names}")
    print("names of saved weights:", next(iter(ddp.state_dict())), "or, of ddp.module,", next(iter(model.state_dict())))
leave()
