"""A plain DistDGL script after chapter 7 of DGL's user guide: it does not import tutorial_lib."""

import argparse
import os
import sys

import dgl
import torch as th
import torch.nn.functional as F
from dgl.nn import SAGEConv


class SAGE(th.nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes):
        super().__init__()
        self.layers = th.nn.ModuleList([SAGEConv(in_feats, n_hidden, "mean"), SAGEConv(n_hidden, n_classes, "mean")])

    def forward(self, blocks, x):
        for k, (layer, block) in enumerate(zip(self.layers, blocks)):  # noqa: B905
            x = layer(block, x)
            x = F.relu(x) if k == 0 else x
        return x


def main(args):
    dgl.distributed.initialize(args.ip_config)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    pb = g.get_partition_book()
    train_nid = dgl.distributed.node_split(g.ndata["train_mask"], pb, force_even=True)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([10, 25])
    dataloader = dgl.dataloading.DistNodeDataLoader(g, train_nid, sampler, batch_size=100, shuffle=True)
    model = SAGE(g.ndata["feat"].shape[1], 32, 47)
    model = th.nn.parallel.DistributedDataParallel(model)
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)
    if args.fault == f"exit on {th.distributed.get_rank()}":
        sys.exit("no such option")
    for epoch in range(args.num_epochs):
        with model.join():
            for input_nodes, seeds, blocks in dataloader:
                loss = F.cross_entropy(model(blocks, g.ndata["feat"][input_nodes]), g.ndata["label"][seeds].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        where = f"{args.title} {os.environ.get('GUIDE_TITLE')}: rank {th.distributed.get_rank()}"
        print(f"{where} epoch {epoch} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--graph_name")
    parser.add_argument("--num_epochs", type=int)
    parser.add_argument("--title")
    parser.add_argument("--fault")  # for the test of scripts that fail
    main(parser.parse_args())
