"""Compute exact scores of all nodes on all machines, with ``from predict import inference, accuracy``."""

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistTensor, node_split


@torch.no_grad()
def inference(model, g, name):
    """Return a DistTensor of scores (N, classes), layer by layer over all neighbors. Each call needs a new ``name``."""
    model.eval()
    everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
    nodes = node_split(everyone, g.get_partition_book(), force_even=False)  # the nodes of this rank's part
    sampler, x = dgl.dataloading.MultiLayerNeighborSampler([-1]), g.ndata["feat"]
    for number, layer in enumerate(model.layers):
        y = DistTensor((g.num_nodes(), layer.fc_neigh.out_features), torch.float32, name=f"{name}-{number}")
        for inputs, seeds, (block,) in dgl.dataloading.DistNodeDataLoader(g, nodes, sampler, batch_size=1000):
            h = layer(block, x[inputs])
            y[seeds] = h if layer is model.layers[-1] else F.relu(h)
        dist.barrier()  # the next layer reads rows of all machines
        x = y
    return x


def accuracy(scores, g, ids):
    """Return the accuracy over the nodes of all ranks, and this rank's accuracy, which is not the model's accuracy."""
    right = (scores[ids].argmax(1) == g.ndata["label"][ids]).sum()
    counts = torch.stack([right, torch.tensor(len(ids))])
    own = (counts[0] / counts[1]).item()
    dist.all_reduce(counts)  # sum the counts before the division
    return (counts[0] / counts[1]).item(), own
