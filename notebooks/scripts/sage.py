"""Define the GraphSAGE model of lesson 01. Later lessons use ``from scripts.sage import GraphSAGE``."""

from itertools import pairwise

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn


class GraphSAGE(nn.Module):
    """GraphSAGE with one SAGEConv per hop, and with ReLU and dropout between two layers."""

    def __init__(self, in_size, hidden_size, out_size, num_layers=2, dropout=0.5):
        super().__init__()
        sizes = [in_size] + [hidden_size] * (num_layers - 1) + [out_size]
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, x):
        """Return scores (B, out_size) of the seed nodes from features of the input nodes, with one block per layer."""
        for layer, block in zip(self.layers, blocks):
            x = layer(block, x)
            if layer is not self.layers[-1]:  # the last layer returns the scores without an activation
                x = self.dropout(F.relu(x))
        return x

    @torch.no_grad()
    def inference(self, graph, x, batch_size=2048):
        """Return exact scores (N, out_size) of all nodes. Each layer is computed for all nodes and all neighbors.

        ``graph`` is a DGLGraph, or a DistGraph in one process. ``x`` is a tensor or DistTensor of shape (N, in_size).
        """
        was_training = self.training
        self.eval()  # disables dropout
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
