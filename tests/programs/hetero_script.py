"""A plain DistDGL script on a graph with two node types: it knows nothing of tutorial_lib."""

import argparse

import dgl
import dgl.nn as dglnn
import torch as th
import torch.nn as nn
import torch.nn.functional as F


class RGCN(nn.Module):
    def __init__(self, etypes, size, classes):
        super().__init__()
        self.first = dglnn.HeteroGraphConv({e: dglnn.SAGEConv(size, 16, "mean") for e in etypes}, aggregate="sum")
        self.second = dglnn.HeteroGraphConv({e: dglnn.SAGEConv(16, classes, "mean") for e in etypes}, aggregate="sum")

    def forward(self, blocks, x):
        x = {ntype: F.relu(h) for ntype, h in self.first(blocks[0], x).items()}
        return self.second(blocks[1], x)["paper"]


def main(args):
    dgl.distributed.initialize(args.ip_config)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    nodes = dgl.distributed.node_split(
        g.nodes["paper"].data["train_mask"], g.get_partition_book(), ntype="paper", force_even=True
    )
    sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 4])
    loader = dgl.dataloading.DistNodeDataLoader(g, {"paper": nodes}, sampler, batch_size=16, shuffle=True)
    embed = dgl.distributed.DistEmbedding(g.num_nodes("author"), 8, name="author_emb", init_func=init)
    sparse = dgl.distributed.optim.SparseAdam([embed], lr=0.01)
    model = nn.parallel.DistributedDataParallel(RGCN(["writes", "written-by"], 8, 3), find_unused_parameters=True)
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        with model.join():
            for input_nodes, seeds, blocks in loader:
                x = {"paper": g.nodes["paper"].data["feat"][input_nodes["paper"]]}
                x["author"] = embed(input_nodes["author"])
                loss = F.cross_entropy(model(blocks, x), g.nodes["paper"].data["label"][seeds["paper"]].long())
                optimizer.zero_grad()
                sparse.zero_grad()
                loss.backward()
                optimizer.step()
                sparse.step()
        print(f"hetero rank {th.distributed.get_rank()} epoch {epoch} loss {loss.item():.3f}", flush=True)


def init(shape, dtype):
    return th.zeros(shape, dtype=dtype).uniform_(-0.1, 0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--graph_name")
    main(parser.parse_args())
