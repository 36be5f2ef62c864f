"""Sample a DistGraph with two workers of PyTorch's DataLoader. Usage: sampling_workers.py PART_CONFIG NODES..."""

import sys

import dgl
import torch
from torch.utils.data import DataLoader


def draw_two(ids):
    return dgl.distributed.sample_neighbors(g, torch.tensor(ids), 2).edges()[0].tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dgl.distributed.initialize("ip_config.txt")
    g = dgl.distributed.DistGraph("synthetic-products", part_config=sys.argv[1])
    dgl.seed(0)
    nodes = [int(node) for node in sys.argv[2:]]
    for loader in (
        dgl.distributed.DistDataLoader(torch.tensor(nodes), batch_size=1, collate_fn=draw_two),
        DataLoader(nodes, batch_size=1, collate_fn=draw_two, num_workers=2, timeout=60),
    ):
        for epoch in range(2):
            print(type(loader).__name__, "epoch", epoch, list(loader), flush=True)
