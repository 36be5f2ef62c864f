"""A plain DistDGL script for link prediction without labels. It does not import tutorial_lib."""

import argparse

import dgl
import dgl.nn as dglnn
import torch as th
import torch.nn.functional as F


def main(args):
    dgl.distributed.initialize(args.ip_config)
    th.distributed.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    edges = dgl.distributed.edge_split(th.arange(g.num_edges()) < 2000, g.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5])
    loader = dgl.dataloading.DistEdgeDataLoader(
        g,
        edges,
        sampler,
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
        batch_size=200,
        shuffle=True,
    )
    model = th.nn.parallel.DistributedDataParallel(dglnn.SAGEConv(g.ndata["feat"].shape[1], 16, "mean"))
    optimizer = th.optim.Adam(model.parameters(), lr=0.01)
    with model.join():
        for input_nodes, pairs, negatives, blocks in loader:
            h = model(blocks[0], g.ndata["feat"][input_nodes])
            scores = []
            for graph in (pairs, negatives):
                u, v = graph.edges()
                scores.append((h[u] * h[v]).sum(1))
            labels = th.cat([th.ones_like(scores[0]), th.zeros_like(scores[1])])
            loss = F.binary_cross_entropy_with_logits(th.cat(scores), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"link rank {th.distributed.get_rank()} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--graph_name")
    main(parser.parse_args())
