"""Train GraphSAGE on machines with the guide's custom sampler, corrected. Usage: sampling_train.py FOLDER"""

import os
import sys
from collections import Counter
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistDataLoader, DistGraph, node_split
from torch.nn.parallel import DistributedDataParallel

from sage import GraphSAGE


class NeighborSampler:
    """Sampler of the guide, which uses a graph, fan-outs and a sampling function."""

    def __init__(self, g, fanouts, sample_neighbors):
        self.g, self.fanouts, self.sample_neighbors = g, fanouts, sample_neighbors

    def sample_blocks(self, ids):
        """Return the blocks, outermost hop first, and the IDs of the sampling process and of its parent."""
        seeds, blocks = torch.as_tensor(ids), []
        for fanout in reversed(self.fanouts):
            frontier = self.sample_neighbors(self.g, seeds, fanout)
            blocks.insert(0, dgl.to_block(frontier, seeds))
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks, (os.getpid(), os.getppid())


def load_subtensor(g, seeds, input_nodes):
    return g.ndata["feat"][input_nodes], g.ndata["label"][seeds]


def loss_of(model, g, blocks):
    x, y = load_subtensor(g, blocks[-1].dstdata[dgl.NID], blocks[0].srcdata[dgl.NID])
    return F.cross_entropy(model(blocks, x), y)


def main(folder):
    dgl.distributed.initialize("ip_config.txt")  # also starts the sampler processes
    dist.init_process_group("gloo")
    g = DistGraph("synthetic-products", "part_config.json")  # copied from the guide, although this file does not exist
    train_nid = node_split(g.ndata["train_mask"], g.get_partition_book(), force_even=True)
    torch.manual_seed(0)  # every rank starts with the same weights
    model = DistributedDataParallel(GraphSAGE(g.ndata["feat"].shape[1], 64, 47, dropout=0))

    # This step uses all neighbors and is not random, so the notebook can compare it with a step of one process.
    blocks, _ = NeighborSampler(g, [-1, -1], dgl.distributed.sample_neighbors).sample_blocks(train_nid[:8])
    loss = loss_of(model, g, blocks)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    found = {"seeds": train_nid[:8], "loss": loss.item(), "gradients": gradients, "trainer": os.getpid()}

    sampler = NeighborSampler(g, [5, 10], dgl.distributed.sample_neighbors)
    collate = sampler.sample_blocks
    dataloader = DistDataLoader(dataset=train_nid.numpy(), batch_size=100, collate_fn=collate, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    drawn_by = Counter()
    for _epoch in range(5):
        with model.join():
            for blocks, process in dataloader:
                loss = loss_of(model, g, blocks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                drawn_by[process] += 1
    for (pid, parent), batches in drawn_by.items():
        print(f"trainer {os.getpid()}: {batches} batches drawn by process {pid}, a child of {parent}", flush=True)
    torch.save({**found, "drawn_by": dict(drawn_by)}, Path(folder, f"rank-{dist.get_rank()}.pt"))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), Path(folder, "model.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
