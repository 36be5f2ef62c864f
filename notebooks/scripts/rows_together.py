"""Update the same row of a DistEmbedding on two ranks. Machine 0 owns node 0, and the row starts with zeros."""

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor, optim
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from leave import leave
from rows import SparseSteps

NODE = torch.tensor([0])


def say(*words):
    dist.barrier()
    if dist.get_rank() == 0:
        print(*words, flush=True)
    dist.barrier()


def new_rows(name):
    rows = DistEmbedding(g.num_nodes(), 4, name=name, part_policy=g.get_node_partition_policy("_N"))
    dist.barrier()
    return rows


def step_together(kind, gradients, steps=1):
    """Make the same steps on all ranks. A rank has one gradient for all numbers of the row, or None without a batch."""
    rows = new_rows(f"{kind.__name__}-{gradients}")
    optimizer, gradient = kind([rows], lr=1.0), gradients[dist.get_rank()]
    for _ in range(steps):
        optimizer.zero_grad()
        if gradient is not None:
            (gradient * rows(NODE)).sum().backward()
        optimizer.step()  # a collective operation, so every rank must call step
    state = optimizer._state[rows.name]
    state = {t.name.split("_")[-1]: t for t in (state if isinstance(state, tuple) else [state])}
    found = {"row": rows.weight, **state}
    numbers = ", ".join(f"{name} {table[NODE].flatten()[0].item():.4g}" for name, table in found.items())
    say(f"{kind.__name__}, gradients {gradients}, {steps} step(s): {numbers}")


def write_by_hand(changes):
    """Read, change and write back a row of a DistTensor on every rank."""
    table = DistTensor((g.num_nodes(), 1), torch.float32, "by-hand", part_policy=g.get_node_partition_policy("_N"))
    dist.barrier()
    row = table[NODE]
    dist.barrier()  # all ranks must read before any rank writes
    table[NODE] = row + changes[dist.get_rank()]
    say(f"by hand, changes {changes}: {table[NODE].item():g}")


def uneven(batches):
    """Train with more batches on rank 0 than on rank 1. Every batch reads node 0, and only rank 0 reads node 1."""
    rows = new_rows("uneven")
    optimizer, model = optim.SparseAdam([rows], lr=0.1), DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([model, SparseSteps(model, optimizer)]):
        for _ in range(batches[dist.get_rank()]):
            optimizer.zero_grad()
            model(rows(torch.tensor([0, 1][: 2 - dist.get_rank()]))).sum().backward()
            optimizer.step()
    say(f"batches {batches}: steps of nodes 0 and 1: {optimizer._state[rows.name][0][torch.tensor([0, 1])].tolist()}")


if __name__ == "__main__":
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("synthetic-products")
    for kind in (optim.SparseAdam, optim.SparseAdagrad):
        step_together(kind, [2.0, 6.0])
        step_together(kind, [2.0, None])
    for steps in (2, 20):
        step_together(optim.SparseAdagrad, [2.0, 6.0], steps)
    write_by_hand([2.0, 6.0])
    uneven([3, 1])
    dgl.distributed.exit_client()
    leave()
