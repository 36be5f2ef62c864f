"""Measure epochs of train.py (lesson 10): epoch_costs.py OPTIONS --out FILE -- BANDWIDTH,CACHE ...

CACHE is none, a share of the remote rows such as 0.25, hot-0.25 (filled before the first batch), or library-0.25
(``FeatureCache`` of the library tutorial_lib). Every epoch trains on the same batches with all of these settings.
"""

import json
import sys
import time
from pathlib import Path

import dgl
import torch
import torch.distributed as dist

from cache import FeatureCache
from costs import received
from job import arguments, join_job, leave_job
from node_task import NodeTask
from seeds import seed_job
from support.lessons.bandwidth import set_bandwidth
from train import train_epoch
from tutorial_lib.sampling import feature_cache


class LibraryCache(feature_cache.FeatureCache):  # reads one batch at a time here, so it does not look ahead
    def __getitem__(self, ids):
        self.announce(ids)
        self.request()
        return self.read(self.receive_rows())


class CountingTask(NodeTask):
    rows = remote = 0  # of its batches, and of these rows those that other machines store

    def read(self, sample):
        book, ids = self.g.get_partition_book(), sample[1][0].srcdata[dgl.NID]
        self.rows += len(ids)
        self.remote += int((book.nid2partid(ids) != book.partid).sum())
        return super().read(sample)


def open_table(g, name):
    """Return the features, with a cache if the name has a share of the remote rows."""
    feat, book = g.ndata["feat"], g.get_partition_book()
    if name == "none":
        return feat
    *kind, share = name.split("-")
    size = int(float(share) * (g.num_nodes() - len(book.partid2nids(book.partid)))) * feat.shape[1] * 4
    cache = LibraryCache(feat, book, size) if kind == ["library"] else FeatureCache(feat, book, size)
    if kind == ["hot"]:
        cache.fill(g.in_degrees(torch.arange(g.num_nodes())))
    return cache


def measure(task, epoch):
    """Train one epoch. Return its seconds, the received bytes, and the rows of this rank."""
    seed_job(epoch)
    task.rows = task.remote = 0
    before, start = received(), time.perf_counter()
    train_epoch(task, epoch)
    dist.barrier()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": received() - before, "rows": task.rows, "remote": task.remote}


def main(args, ways):
    g = join_job(args)
    task, epochs = CountingTask(g, args), {way: [] for way in ways}
    tables = {name: open_table(g, name) for name in {way.split(",")[1]: None for way in ways}}
    for epoch in range(args.num_epochs):
        for way in ways:  # the settings take turns, so a disturbance of this computer affects all of them
            speed, name = way.split(",")
            set_bandwidth(speed)
            task.feat = tables[name]
            epochs[way].append(measure(task, epoch))
    rates = {name: [table.hits, table.requests] for name, table in tables.items() if isinstance(table, FeatureCache)}
    ids = task.ids["train"]
    assert all(torch.equal(table[ids], g.ndata["feat"][ids]) for table in tables.values())
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {"epochs": epochs, "hits": rates})
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(ranks))
    leave_job()


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(arguments().parse_args(sys.argv[1:end]), sys.argv[end + 1 :])
