"""Train GraphSAGE on a DistGraph in standalone mode, in one process. Later lessons parallelize this program."""

import argparse

import dgl
import torch
import torch.nn.functional as F

from sage import GraphSAGE

parser = argparse.ArgumentParser()
parser.add_argument("--part_config", required=True)
parser.add_argument("--graph_name", default="products")
parser.add_argument("--num_classes", type=int, default=47)
parser.add_argument("--num_epochs", type=int, default=5)
parser.add_argument("--batch_size", type=int, default=256)
parser.add_argument("--lr", type=float, default=0.01)


def train_epoch(g, loader, model, optimizer):
    """Train one epoch and return the mean loss per seed node."""
    total = count = 0
    for input_nodes, seeds, blocks in loader:
        scores = model(blocks, g.ndata["feat"][input_nodes])
        loss = F.cross_entropy(scores, g.ndata["label"][seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * len(seeds), count + len(seeds)
    return total / count


def accuracy(g, scores, mask):
    """Return the accuracy of the scores on the nodes of a mask."""
    ids = dgl.distributed.node_split(g.ndata[mask])
    return (scores[ids].argmax(1) == g.ndata["label"][ids]).double().mean().item()


def set_up(args):
    """Return the graph, loader, model and optimizer. Every run uses the same random seeds."""
    torch.set_num_threads(1)  # DGL has one random generator per thread
    dgl.distributed.initialize("ip_config.txt")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    ids = dgl.distributed.node_split(g.ndata["train_mask"])
    torch.manual_seed(0)
    dgl.seed(0)
    model = GraphSAGE(g.ndata["feat"].shape[1], 64, args.num_classes)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 10])
    loader = dgl.dataloading.DistNodeDataLoader(g, ids, sampler, batch_size=args.batch_size, shuffle=True)
    return g, loader, model, torch.optim.Adam(model.parameters(), lr=args.lr)


if __name__ == "__main__":
    args = parser.parse_args()
    g, loader, model, optimizer = set_up(args)
    for epoch in range(args.num_epochs):
        print(f"epoch {epoch} loss {train_epoch(g, loader, model, optimizer):.4f}", flush=True)
    scores = model.inference(g, g.ndata["feat"])
    print(f"valid {accuracy(g, scores, 'val_mask'):.4f} test {accuracy(g, scores, 'test_mask'):.4f}")
