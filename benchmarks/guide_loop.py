"""The reference: distributed training as DGL's user guide writes it, each part of a step after the one before.

    python -m tutorial_lib launch --emulate 2 --workspace . --part_config data/... "python benchmarks/guide_loop.py"

Our own version of the loop in DGL's guide, chapter 7 (distributed training), and of its GraphSAGE example: draw the
neighbors, pull the features, forward, backward, step. The hyper-parameters are those of the example: 3 layers of 256,
fan-out 15,10,5 (drawn in this order from the outermost hop inwards), batches of 1000, Adam at 0.003, dropout 0.5.
Nothing of ``tutorial_lib`` is in it. ``epoch`` is what the benchmark times.
"""

import argparse
import os
import time
from itertools import pairwise

import dgl
import torch
import torch.nn.functional as F
from dgl.nn import SAGEConv
from torch import nn


class GraphSAGE(nn.Module):
    """Mean aggregation; the widths are ``in_size``, then ``hidden`` for each layer, then ``classes``."""

    def __init__(self, in_size: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [in_size] + [hidden] * (layers - 1) + [classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks: list, x: torch.Tensor) -> torch.Tensor:
        """Logits of the seeds; x is float32 (input nodes, in_size)."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number < len(self.layers) - 1:
                x = self.dropout(F.relu(x))
        return x


def loader_of(graph: dgl.distributed.DistGraph, nodes: torch.Tensor, fanouts: list[int], batch_size: int):
    """DGL's loader of mini-batches, shuffled."""
    sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
    return dgl.dataloading.DistNodeDataLoader(graph, nodes, sampler, batch_size=batch_size, shuffle=True)


def epoch(graph, model: nn.Module, optimizer: torch.optim.Optimizer, loader) -> float:
    """One pass over the loader; returns the mean loss of this rank's batches."""
    losses = []
    model.train()
    with model.join():
        for input_nodes, seeds, blocks in loader:
            features = graph.ndata["feat"][input_nodes]
            labels = graph.ndata["label"][seeds].long()
            loss = F.cross_entropy(model(blocks, features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / max(len(losses), 1)


def main() -> None:
    """What each process of the job runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph-name", required=True)
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server stays in this line until the job ends
    torch.distributed.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(options.graph_name, part_config=os.environ["DGL_CONF_PATH"])
    nodes = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)
    loader = loader_of(graph, nodes, [15, 10, 5], 1000)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 256, options.classes, 3, 0.5)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for number in range(options.epochs):
        start = time.perf_counter()
        loss = epoch(graph, model, optimizer, loader)
        print(f"epoch {number}: loss {loss:.4f}, {time.perf_counter() - start:.2f} s", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
