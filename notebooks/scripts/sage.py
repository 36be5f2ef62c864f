"""GraphSAGE, as lesson 01 writes it. Later lessons import it: ``from scripts.sage import GraphSAGE``."""

from itertools import pairwise

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn


class GraphSAGE(nn.Module):
    """One SAGEConv per hop; between two of them a ReLU and dropout."""

    def __init__(self, in_size, hidden_size, out_size, num_layers=2, dropout=0.5):
        super().__init__()
        sizes = [in_size] + [hidden_size] * (num_layers - 1) + [out_size]
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, x):
        """Scores of the seed nodes (B, out_size) from the features of the input nodes: one block for each layer."""
        for layer, block in zip(self.layers, blocks):
            x = layer(block, x)
            if layer is not self.layers[-1]:  # what the last layer gives are the scores, as they are
                x = self.dropout(F.relu(x))
        return x

    @torch.no_grad()
    def inference(self, graph, x, batch_size=2048):
        """Exact scores of all nodes (N, out_size): layer after layer, each over all neighbors.

        graph: a DGLGraph, or a DistGraph in one process. x: features (N, in_size), a tensor or a DistTensor.
        """
        was_training = self.training
        self.eval()  # no dropout
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
