"""Compute exact scores of all nodes on all machines, and the accuracy over all ranks (lesson 10)."""

import functools

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistTensor, node_split

from ranks import weighted_reduce


@functools.cache
def layer_rows(g, number, width):
    """Return a DistTensor (N, width) for the output of a layer. Later calls return the same DistTensor.

    DGL would share the rows of two DistTensors with one name, and delete the rows of both with the first of them.
    """
    policy = g.get_node_partition_policy("_N")
    return DistTensor((g.num_nodes(), width), torch.float32, name=f"layer-{number}-{width}", part_policy=policy)


def nodes_of_rank(g):
    """Return the nodes that this rank computes. Together, the ranks of a machine compute the nodes of its part."""
    everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
    return node_split(everyone, g.get_partition_book(), force_even=False)


@torch.no_grad()
def inference(model, g, x, device, batch_size=1000):
    """Return the exact scores of all nodes, a DistTensor (N, classes), from all neighbors and without dropout.

    Each rank computes the rows of ``nodes_of_rank(g)`` layer by layer and writes them to ``layer_rows``. No rank starts
    a layer before all ranks have written the rows of the previous one.

    Args:
        model: GraphSAGE, without DDP. ``layer.fc_neigh.out_features`` is the width of the output of a layer.
        x: DistTensor (N, in_size) with the features.
    """
    model.eval()
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
    for number, layer in enumerate(model.layers):
        rows = layer_rows(g, number, layer.fc_neigh.out_features)
        for nodes in nodes_of_rank(g).split(batch_size):
            inputs, _, (block,) = sampler.sample_blocks(g, nodes)
            h = layer(block.to(device), x[inputs].to(device)).cpu()
            rows[nodes] = h if layer is model.layers[-1] else F.relu(h)
        dist.barrier()
        x = rows
    return x


def accuracy(scores, labels, ids):
    """Return the accuracy on the nodes ``ids`` of all ranks, a float, on every rank. Some ranks can have no nodes."""
    right = 0
    if len(ids):  # a DistTensor rejects an empty tensor of IDs
        right = int((scores[ids].argmax(1) == labels[ids]).sum())
    return weighted_reduce(right, len(ids))
