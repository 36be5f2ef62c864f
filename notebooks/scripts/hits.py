"""Count cache hits of remote rows. ``measure`` requests the same batches from two caches of the same size."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from row_cache import RowCache
from seeds import seed_job
from train_before import batches, join_job, leave_job, split


def measure(args, make):
    """Compare RowCache with ``make(tensor, book, capacity, degrees)``. Each rank writes FILE-RANK.json for --out FILE.

    capacity: number of rows, a quarter of all remote rows. degrees: number of neighbors of each node.
    """
    if not args.out:
        sys.exit("hits.py: --out FILE is missing")
    g = join_job(args)
    feat, book, ids = g.ndata["feat"], g.get_partition_book(), split(g)[0]
    capacity = (len(feat) - len(feat.local_partition)) // 4
    degrees = g.in_degrees(torch.arange(g.num_nodes()))
    caches = {"first come": RowCache(feat, book, capacity), "mine": make(feat, book, capacity, degrees)}
    for epoch in range(args.num_epochs):
        seed_job(epoch)
        for input_nodes, _, _ in batches(g, ids, args, epoch):
            rows = {name: cache[input_nodes] for name, cache in caches.items()}
            assert torch.equal(rows["first come"], rows["mine"])
    found = {"capacity": capacity, "kept": (caches["mine"].place >= 0).nonzero().flatten().tolist()}
    for name, cache in caches.items():
        found[name] = [cache.found, cache.asked]
        print(f"{name}: {cache.found:,} of {cache.asked:,} remote rows were here", flush=True)
    Path(f"{args.out}-{dist.get_rank()}.json").write_text(json.dumps(found))
    leave_job()
