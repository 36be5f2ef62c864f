"""Count the remote rows of one batch per rank, and the received bytes. Usage: sampling_count.py FANOUTS..."""

import sys

import dgl
import torch

from costs import received
from sampling import BatchSampler, NodeLoader, count_rows

dgl.distributed.initialize("ip_config.txt")
torch.distributed.init_process_group("gloo")
g = dgl.distributed.DistGraph("synthetic-products")
seeds = dgl.distributed.node_split(g.ndata["train_mask"])[-64:]  # nodes of this rank's part (see lesson 04)
for fanouts in sys.argv[1:]:
    for local_only in (False, True):
        sampler = BatchSampler(g, [int(fanout) for fanout in fanouts.split(",")], local_only)
        (batch,) = list(NodeLoader(sampler, seeds, len(seeds), shuffle=False))
        rows, remote = count_rows(g.get_partition_book(), [batch])
        before = received()
        g.ndata["feat"][batch[0]]  # reads the rows of the input nodes
        counts = f"{rows} rows, {remote} remote, {received() - before} bytes received"
        print(f"fan-outs {fanouts}, local_only={local_only}: {counts}", flush=True)
