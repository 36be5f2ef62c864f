"""Update one row of a DistEmbedding on two ranks (lesson 14). Machine 0 owns node 0, and the row starts with zeros."""

import warnings

import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor, optim

from job import arguments, join_job, leave_job
from row_table import RowAdam

NODE = torch.tensor([0])


def say(*words):
    dist.barrier()
    if dist.get_rank() == 0:
        print(*words, flush=True)
    dist.barrier()


def step_together(kind, steps):
    """Make steps on both ranks. A step has the gradient of each rank, or None if the rank does not read the row."""
    name = f"{kind.__name__}-{len(steps)}"
    rows = DistEmbedding(g.num_nodes(), 4, name=name, part_policy=g.get_node_partition_policy("_N"))
    dist.barrier()
    optimizer = kind([rows], lr=1.0)
    for gradients in steps:
        gradient = gradients[dist.get_rank()]
        optimizer.zero_grad()
        if gradient is not None:
            (gradient * rows(NODE)).sum().backward()
        optimizer.step()
    state = optimizer._state[rows.name]
    state = {tensor.name.split("_")[-1]: tensor for tensor in (state if isinstance(state, tuple) else [state])}
    numbers = {key: tensor[NODE].flatten()[0].item() for key, tensor in {"row": rows.weight, **state}.items()}
    shown = f"{steps[:1]} * {len(steps)}" if len(steps) > 2 else steps
    say(f"{kind.__name__} {shown}: " + ", ".join(f"{key} {number:.4g}" for key, number in numbers.items()))
    return optimizer


def write_by_hand(changes):
    """Read, change and write back a row of a DistTensor on every rank."""
    table = DistTensor((g.num_nodes(), 1), torch.float32, "by-hand", part_policy=g.get_node_partition_policy("_N"))
    dist.barrier()
    row = table[NODE]
    dist.barrier()  # all ranks must read before any rank writes
    table[NODE] = row + changes[dist.get_rank()]
    say(f"by hand, changes {changes}: {table[NODE].item():g}")


def save_and_load(optimizer, file):
    """Save the state, change it, and load it. Then load a file that does not exist."""
    (state,) = optimizer._state.values()
    optimizer.save(file)
    saved = state[NODE][0, 0].item()
    for path in (file, "no-such-file"):
        dist.barrier()  # all ranks have read the row
        state[NODE] = torch.zeros(1, 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.load(path)
        warned = [str(warning.message) for warning in caught]
        say(f"saved sum {saved:.4g}, then 0, loaded {state[NODE][0, 0].item():.4g}", *warned)


if __name__ == "__main__":
    args = arguments().parse_args()
    g = join_job(args)
    for kind in (optim.SparseAdam, RowAdam):
        step_together(kind, [(2.0, 6.0)])
        step_together(kind, [(2.0, 6.0), (2.0, None)])
    for count in (1, 2, 20):
        adagrad = step_together(optim.SparseAdagrad, [(2.0, 6.0)] * count)
    write_by_hand((2.0, 6.0))
    save_and_load(adagrad, args.checkpoint)
    if dist.get_rank() == 0:
        adagrad.step()  # rank 1 has no batch left
    leave_job()
