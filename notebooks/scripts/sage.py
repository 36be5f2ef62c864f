"""Define GraphSAGE, the model of the course (lesson 01)."""

from itertools import pairwise

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn


def mean_of_neighbors(block, x):
    """Return the mean of the rows that each destination node receives, in plain torch.

    Several edges can have the same destination. ``Tensor.index_add`` adds all of their rows.

    Args:
        block: graph of one hop. ``block.edges()`` returns the source and the destination node of each edge.
        x: tensor (S, D) with one row for each of the S source nodes.

    Returns:
        Tensor (``block.num_dst_nodes()``, D). The row of a node without incoming edges is zero.
    """
    sources, targets = block.edges()
    count = block.num_dst_nodes()
    total = x.new_zeros(count, x.shape[1])
    total = total.index_add(0, targets, x[sources])
    degrees = torch.bincount(targets, minlength=count).clamp(min=1)
    return total / degrees.unsqueeze(1)


class MeanConv(nn.Module):
    """One layer of GraphSAGE, with the parameters of DGL's ``SAGEConv``."""

    def __init__(self, in_size, out_size):
        super().__init__()
        self.fc_self = nn.Linear(in_size, out_size)
        self.fc_neigh = nn.Linear(in_size, out_size, bias=False)

    def forward(self, block, x):
        """Return ``fc_self(row of the node) + fc_neigh(mean of its neighbors)`` for each destination node.

        The destination nodes are the first source nodes, so ``x`` starts with their rows.
        """
        own = x[: block.num_dst_nodes()]
        received = mean_of_neighbors(block, x)
        return self.fc_self(own) + self.fc_neigh(received)


def sage_conv(in_size, out_size):
    """Return DGL's layer, which computes the same as ``MeanConv`` with a faster kernel."""
    return dglnn.SAGEConv(in_size, out_size, "mean")


class GraphSAGE(nn.Module):
    """GraphSAGE with one layer per hop."""

    def __init__(self, in_size, hidden_size, out_size, num_layers=2, dropout=0.5, layer=sage_conv):
        super().__init__()
        sizes = [in_size] + [hidden_size] * (num_layers - 1) + [out_size]
        self.layers = nn.ModuleList(layer(a, b) for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, x):
        """Return the scores (B, out_size) of the seed nodes.

        Take layers and blocks in pairs, as ``zip`` does. Without a block, a layer is not used. ReLU and then
        ``self.dropout`` follow each layer except the last one in ``self.layers``.

        Args:
            blocks: one block per layer, outermost hop first.
            x: features of the input nodes, which are the source nodes of the first block.
        """
        for layer, block in zip(self.layers, blocks):
            x = layer(block, x)
            if layer is not self.layers[-1]:
                x = self.dropout(F.relu(x))
        return x

    @torch.no_grad()
    def inference(self, graph, x, batch_size=2048):
        """Return the exact scores (N, out_size) of all nodes, from all neighbors and without dropout.

        Compute a layer for all nodes, ``batch_size`` nodes at a time, before the next layer. A sampler
        ``dgl.dataloading.MultiLayerFullNeighborSampler(1)`` returns blocks with all neighbors:
        ``input_nodes, _, (block,) = sampler.sample_blocks(graph, nodes)``. Afterwards, the model is in the mode
        (training or evaluation) in which it was before.

        Args:
            graph: DGLGraph, or DistGraph in one process, with the nodes 0 to N - 1.
            x: tensor or DistTensor (N, in_size). A DistTensor only supports reading rows by ID.
        """
        was_training = self.training
        self.eval()
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
        for layer in self.layers:
            rows = []
            for nodes in torch.arange(graph.num_nodes()).split(batch_size):
                inputs, _, (block,) = sampler.sample_blocks(graph, nodes)
                h = layer(block, x[inputs])
                rows.append(h if layer is self.layers[-1] else F.relu(h))
            x = torch.cat(rows)
        self.train(was_training)
        return x
