"""Collect the items that each rank gets from a DistributedItemSampler. Rank 0 writes them to a file.

torchrun --nproc_per_node 4 scripts/bolt_shares.py LABELS.npy OUT.json
"""

import json
import sys

import dgl.graphbolt as gb
import numpy as np
import torch
import torch.distributed as dist

from leave import leave

SETTINGS = {
    "no option": {},
    "drop_last": {"drop_last": True},
    "drop_uneven_inputs": {"drop_uneven_inputs": True},
    "both": {"drop_last": True, "drop_uneven_inputs": True},
}


def my_batches(items, batch_size, **options):
    """Return the items of this rank as one list per batch."""
    sampler = gb.DistributedItemSampler(gb.ItemSet(items, names="seed_nodes"), batch_size, **options)
    return [batch.seed_nodes.tolist() for batch in sampler]


def my_items(items, epochs, before):
    """Return this rank's items in each epoch, shuffled before the sampler divides them or by the sampler itself."""
    found = []
    for epoch in range(epochs):
        order = torch.randperm(len(items), generator=torch.Generator().manual_seed(epoch))
        batches = my_batches(items[order] if before else items, 64, shuffle=not before)
        found.append([item for batch in batches for item in batch])
    return found


dist.init_process_group("gloo")
labels = torch.from_numpy(np.load(sys.argv[1]))
by_class = labels.argsort(stable=True)
mine = {f"19 items, {name}": my_batches(torch.arange(19), 2, **options) for name, options in SETTINGS.items()}
for size in (64, 1024):
    mine[f"nodes with both drops, batch size {size}"] = sum(map(len, my_batches(by_class, size, **SETTINGS["both"])))
mine["shuffle=True"] = my_items(by_class, 3, before=False)
mine["shuffled before"] = my_items(by_class, 3, before=True)

of_all = [None] * dist.get_world_size()
dist.all_gather_object(of_all, mine)
if dist.get_rank() == 0:
    with open(sys.argv[2], "w") as out:
        json.dump({name: [found[name] for found in of_all] for name in mine}, out)
leave()
