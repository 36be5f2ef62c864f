"""Train with Adam and Join on three batches (rank 0) and five (rank 1), then make a step with equal gradients."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddp_uneven import TARGETS
from leave import leave


def step(model, optimizer, target):
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) - target).square().mean().backward()
    optimizer.step()


def show(when, model, optimizer):
    weight = model.module.weight
    own, both = torch.tensor([optimizer.state[weight]["step"], weight]), [torch.empty(2), torch.empty(2)]
    dist.all_gather(both, own)
    if dist.get_rank() == 0:
        print(
            when.ljust(22), *(f"  rank {rank}: {found[0]:.0f} steps, {found[1]:.4f}" for rank, found in enumerate(both))
        )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for cure in (False, True):
        model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        torch.nn.init.zeros_(model.module.weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        with Join([model]):
            for target in TARGETS[dist.get_rank()]:
                step(model, optimizer, target)
        if cure:
            state = [optimizer.state_dict()]
            dist.broadcast_object_list(state, src=1)  # rank 1 has made every step
            optimizer.load_state_dict(state[0])
        show("cured, after the epoch" if cure else "after the epoch", model, optimizer)
        step(model, optimizer, -6.0)
        show("one step later", model, optimizer)
    leave()
