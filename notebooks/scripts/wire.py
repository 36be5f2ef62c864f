"""The same epochs on several wires and with several ways to fetch rows. Usage: wire.py OPTIONS of train.py -- WAY...

A way is WIRE,SOURCE,DEPTH: "200mbit,all,2" keeps all remote rows and makes two batches ahead on a wire of 200 Mbit/s.
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
from support.lessons.multi_machine_wire import set_wire
from train import arguments, join_job, leave_job, split
from tutorial_lib.sampling.feature_cache import FeatureCache


def received():
    """Bytes that have come over this machine's network cards so far."""
    cards = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(card[1]) for card in cards if card[0] != "lo:")


def sources(g, feat, book):
    """Where features come from: the servers; caches of our own and the library's, for a quarter or all remote rows."""
    remote = len(feat) - len(feat.local_partition)
    caches = {"quarter": RowCache(feat, book, remote // 4), "all": RowCache(feat, book, remote)}
    return {"none": feat, **caches, "library": FeatureCache(feat, book, remote // 4 * feat.shape[1] * 4)}  # in bytes


def train(model, optimizer, items, depth):
    """An epoch: its seconds, those in which the model waited for a batch, and the bytes that all machines received."""
    before, start, waited = received(), time.perf_counter(), 0.0
    last = start
    with Join([model.train()]):  # without train.py's transfer of Adam's state: only time and bytes matter
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
        for way in ways:  # all ways in turn, so that a disturbance of this computer hits all
            wire, source, depth = way.split(",")
            set_wire(wire)
            g.ndata["feat"] = fetch[source]
            worker.submit(seed_job, epoch).result()  # every way draws the same batches; and a barrier
            found[way].append(train(model, optimizer, with_rows(g, ids, args, epoch), int(depth)))
    assert all(torch.equal(each[ids], feat[ids]) for each in fetch.values())
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(found))
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args(sys.argv[1 : sys.argv.index("--")]), sys.argv[sys.argv.index("--") + 1 :])
