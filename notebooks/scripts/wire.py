"""Run the same epochs with several bandwidths and methods to fetch rows. Usage: wire.py OPTIONS of train.py -- WAY...

A way is WIRE,SOURCE,DEPTH. "200mbit,all,2" caches all remote rows and prefetches two batches at 200 Mbit/s.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ahead import made_by_worker, with_rows, worker
from row_cache import RowCache
from sage import GraphSAGE
from seeds import seed_job
from support.lessons.bandwidth import set_bandwidth
from train_before import arguments, join_job, leave_job, split
from tutorial_lib.sampling.feature_cache import FeatureCache


def received():
    """Return the bytes that this machine's network cards have received so far."""
    cards = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(card[1]) for card in cards if card[0] != "lo:")


def sources(g, feat, book):
    """Return sources of features: the servers, RowCache for a quarter or all remote rows, and the library's cache."""
    remote = len(feat) - len(feat.local_partition)
    caches = {"quarter": RowCache(feat, book, remote // 4), "all": RowCache(feat, book, remote)}
    return {"none": feat, **caches, "library": FeatureCache(feat, book, remote // 4 * feat.shape[1] * 4)}  # in bytes


def train(model, optimizer, items, depth):
    """Train for an epoch. Return seconds, seconds of waiting for a batch, and bytes received by all machines."""
    before, start, waited = received(), time.perf_counter(), 0.0
    last = start
    with Join([model.train()]):  # only time and bytes matter, so Adam's state is not copied as in train.py
        for blocks, x, y in made_by_worker(items, depth):
            waited += time.perf_counter() - last
            optimizer.zero_grad()
            F.cross_entropy(model(blocks, x), y).backward()
            optimizer.step()
            last = time.perf_counter()
    dist.barrier()
    numbers = torch.tensor([time.perf_counter() - start, waited, received() - before], dtype=torch.float64)
    dist.all_reduce(numbers)
    seconds, waited, size = numbers.tolist()
    return {"seconds": seconds / dist.get_world_size(), "waited": waited / dist.get_world_size(), "bytes": size}


def main(args, ways):
    if not args.out:
        sys.exit("wire.py: --out FILE is missing")
    g = join_job(args)
    ids, feat = split(g)[0], g.ndata["feat"]
    model = DistributedDataParallel(GraphSAGE(feat.shape[1], args.hidden, 47, dropout=args.dropout))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    fetch, found = sources(g, feat, g.get_partition_book()), {way: [] for way in ways}
    for epoch in range(args.num_epochs):
        for way in ways:  # the ways take turns, so that a disturbance of this computer affects all of them
            wire, source, depth = way.split(",")
            set_bandwidth(wire)
            g.ndata["feat"] = fetch[source]
            worker.submit(seed_job, epoch).result()  # same batches for every way, and a barrier
            found[way].append(train(model, optimizer, with_rows(g, ids, args, epoch), int(depth)))
    assert all(torch.equal(each[ids], feat[ids]) for each in fetch.values())
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(found))
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args(sys.argv[1 : sys.argv.index("--")]), sys.argv[sys.argv.index("--") + 1 :])
