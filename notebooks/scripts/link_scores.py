"""Compute exact vectors of all nodes, ranks of edges, and the mean reciprocal rank over all machines."""

import functools

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistTensor, node_split


@functools.cache
def rows_of(g, layer, width):
    """Return a DistTensor with a row per node on the node's machine. Repeated calls return the same DistTensor."""
    policy = g.get_node_partition_policy("_N")
    return DistTensor((g.num_nodes(), width), torch.float32, name=f"layer-{layer}", part_policy=policy)


@torch.no_grad()
def embed(model, links):
    """Return the vectors of all nodes, layer by layer over all training edges. A rank computes nodes of its machine."""
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
    """Return the rank of each edge (u, v) among the pairs (u, x). All edges share the nodes x. A tie counts as 1/2."""
    score, others = (h[src] * h[dst]).sum(1, keepdim=True), h[src] @ h[rivals].T
    others[(rivals == src[:, None]) | (rivals == dst[:, None])] = -2  # less than any cosine, to exclude these nodes
    return 1 + (others > score).sum(1) + (others == score).sum(1) / 2


def mean_reciprocal_rank(h, links, edges, count=100):
    """Return the mean over the edges of all ranks. The candidates are the same original nodes for any partition."""
    chosen = torch.randperm(len(links.original), generator=torch.Generator().manual_seed(0))[:count]
    rivals = links.original.argsort()[chosen]
    ranks = [ranks_among(h, *links.g.find_edges(ids), rivals) for ids in edges.split(4096)]
    sums = torch.tensor([sum((1 / found.double()).sum() for found in ranks), len(edges)], dtype=torch.float64)
    dist.all_reduce(sums)  # sums and counts, because a mean of means would be wrong
    return (sums[0] / sums[1]).item()
