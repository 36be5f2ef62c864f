"""GraphSAGE, as lesson 01 writes it. Later lessons import it: ``from scripts.sage import GraphSAGE``."""

from itertools import pairwise

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn


class GraphSAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size, num_layers=2, dropout=0.5):
        super().__init__()
        sizes = [in_size] + [hidden_size] * (num_layers - 1) + [out_size]
        self.layers = nn.ModuleList(dglnn.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks, x):
        for depth, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer(block, x)
            if depth < len(self.layers) - 1:  # the last layer's output are the scores
                x = self.dropout(F.relu(x))
        return x

    @torch.no_grad()
    def inference(self, graph, x, batch_size=2048):
        """Scores of all nodes, exact: layer after layer, each with all neighbours.

        graph: a DGLGraph, or a DistGraph in one process. x: (N, F), or a DistTensor.
        """
        self.eval()
        every = dgl.dataloading.MultiLayerFullNeighborSampler(1)
        for depth, layer in enumerate(self.layers):
            rows = []
            for nodes in torch.arange(graph.num_nodes()).split(batch_size):
                inputs, _, (block,) = every.sample_blocks(graph, nodes)
                h = layer(block, x[inputs])
                rows.append(F.relu(h) if depth < len(self.layers) - 1 else h)
            x = torch.cat(rows)
        self.train()
        return x
