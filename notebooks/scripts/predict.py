"""Exact scores of all nodes, on all machines: ``from predict import inference, accuracy``."""

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistTensor, node_split


@torch.no_grad()
def inference(model, g, name):
    """Scores (N, classes), a DistTensor: layer after layer, each over all neighbors. ``name``: new in each call."""
    model.eval()
    everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
    nodes = node_split(everyone, g.get_partition_book(), force_even=False)  # the nodes of the own part
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
    """Right ones among the nodes of all ranks; and this rank's own share, which is not the answer."""
    right = (scores[ids].argmax(1) == g.ndata["label"][ids]).sum()
    counts = torch.stack([right, torch.tensor(len(ids))])
    own = (counts[0] / counts[1]).item()
    dist.all_reduce(counts)  # counts are summed, then divided
    return (counts[0] / counts[1]).item(), own
