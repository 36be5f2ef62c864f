"""How good vectors are at predicting edges, over all machines: exact vectors, ranks, and their mean."""

import functools

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistTensor, node_split


@functools.cache
def rows_of(g, layer, width):
    """A row for each node, kept by its machine; made once."""
    policy = g.get_node_partition_policy("_N")
    return DistTensor((g.num_nodes(), width), torch.float32, name=f"layer-{layer}", part_policy=policy)


@torch.no_grad()
def embed(model, links):
    """The vectors of all nodes over all training edges, layer by layer. A rank makes those of its machine's nodes."""
    g, x = links.g, links.g.ndata["feat"]
    mine = node_split(torch.ones(g.num_nodes(), dtype=torch.bool), g.get_partition_book(), force_even=False)
    model.eval()
    for number, layer in enumerate(model.layers):
        rows = rows_of(g, number, layer.fc_neigh.out_features)
        for nodes in mine.split(4096):
            (block,) = links.sample_blocks(nodes, [-1])
            h = layer(block, x[block.srcdata[dgl.NID]])
            rows[nodes] = F.normalize(h) if layer is model.layers[-1] else F.relu(h)
        dist.barrier()  # the next layer reads rows of other ranks
        x = rows
    return x


def ranks_among(h, src, dst, rivals):
    """Rank of each edge (u, v) among the pairs (u, x) with the same nodes x for all; a tie counts as one half."""
    score, others = (h[src] * h[dst]).sum(1, keepdim=True), h[src] @ h[rivals].T
    others[(rivals == src[:, None]) | (rivals == dst[:, None])] = -2  # the ends of an edge are no rivals of it
    return 1 + (others > score).sum(1) + (others == score).sum(1) / 2


def mean_reciprocal_rank(h, links, edges, count=100):
    """Over the edges of all ranks; the rivals are the same nodes of the data set on any number of machines."""
    chosen = torch.randperm(len(links.original), generator=torch.Generator().manual_seed(0))[:count]
    rivals = links.original.argsort()[chosen]
    ranks = [ranks_among(h, *links.g.find_edges(ids), rivals) for ids in edges.split(4096)]
    sums = torch.tensor([sum((1 / found.double()).sum() for found in ranks), len(edges)], dtype=torch.float64)
    dist.all_reduce(sums)  # sums and counts; a mean of means would be wrong
    return (sums[0] / sums[1]).item()
