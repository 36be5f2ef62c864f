"""Train one epoch and count the bytes that each machine receives. Usage: parts_measure.py RESULT"""

import json
import sys
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from costs import received
from sage import GraphSAGE

FANOUTS = [5, 10]  # outermost hop first
BATCH_SIZE = 100  # per rank


class Meter:
    """Count the bytes that this machine receives in each phase. All ranks begin and end a phase together."""

    def __init__(self):
        self.bytes = dict.fromkeys(("sample", "pull", "update"), 0)
        self.seen = received()

    def end_of(self, phase):
        now = received()
        self.bytes[phase] += now - self.seen
        self.seen = now


def main(result):
    dgl.distributed.initialize("ip_config.txt")
    dist.init_process_group("gloo")
    g = dgl.distributed.DistGraph("products")
    book, feat, label = g.get_partition_book(), g.ndata["feat"], g.ndata["label"]
    train_ids = dgl.distributed.node_split(g.ndata["train_mask"])
    sampler = dgl.dataloading.MultiLayerNeighborSampler(FANOUTS)
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "drop_last": True}
    loader = dgl.dataloading.DistNodeDataLoader(g, train_ids, sampler, **options)
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(feat.shape[1], 64, 47, num_layers=len(FANOUTS)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = {"fanouts": FANOUTS, "batch_size": BATCH_SIZE, "steps": 0, "input_rows": 0, "remote_rows": 0}
    meter = Meter()
    for inputs, seeds, blocks in loader:
        meter.end_of("sample")
        x, y = feat[inputs], label[seeds]
        meter.end_of("pull")
        loss = F.cross_entropy(model(blocks, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.end_of("update")
        found["steps"] += 1
        found["input_rows"] += len(inputs)
        found["remote_rows"] += int((book.nid2partid(inputs) != book.partid).sum())
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, {**found, **meter.bytes})
    if dist.get_rank() == 0:
        Path(result).write_text(json.dumps(ranks))


if __name__ == "__main__":
    main(sys.argv[1])
