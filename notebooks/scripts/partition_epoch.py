"""Measure epochs on two machines (lesson 04). Usage: partition_epoch.py RESULT BANDWIDTH..."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F

from costs import received
from sage import GraphSAGE
from sampling import BatchSampler, NodeLoader
from support.lessons.bandwidth import set_bandwidth


def train_epoch(g, loader, model, optimizer, end_phase, rows):
    """Train an epoch. Add the rows of its batches to ``rows``, and call ``end_phase`` after each phase of a step."""
    book = g.get_partition_book()
    for inputs, seeds, blocks in loader:
        end_phase("sample")
        x, y = g.ndata["feat"][inputs], g.ndata["label"][seeds]
        end_phase("pull")
        optimizer.zero_grad()
        F.cross_entropy(model(blocks, x), y).backward()
        optimizer.step()
        end_phase("update")
        rows.update(steps=1, inputs=len(inputs), remote=int((book.nid2partid(inputs) != book.partid).sum()))


def main(result, *speeds):
    """Count the bytes of an epoch on each machine, and then the seconds of three epochs at each bandwidth."""
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("products")
    ids = dgl.distributed.node_split(g.ndata["train_mask"])
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(GraphSAGE(100, 64, 47))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = NodeLoader(BatchSampler(g, [5, 10]), ids, 100, drop_last=True)
    rows, size, seen = Counter(), Counter(), [received()]

    def count_bytes(phase):
        seen.append(received())
        size[phase] += seen[-1] - seen[-2]

    train_epoch(g, loader, model, optimizer, count_bytes, rows)
    seconds = {speed: [] for speed in speeds}
    for speed in [speed for speed in speeds for _repeat in range(3)]:
        set_bandwidth(speed)
        dist.barrier()
        start = time.perf_counter()
        train_epoch(g, loader, model, optimizer, lambda _phase: None, Counter())
        dist.barrier()
        seconds[speed].append(time.perf_counter() - start)
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {**rows, "bytes": size, "seconds": seconds})
    if dist.get_rank() == 0:
        Path(result).write_text(json.dumps(ranks))


if __name__ == "__main__":
    main(*sys.argv[1:])
