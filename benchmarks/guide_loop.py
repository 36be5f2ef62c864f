"""The reference loop, distributed training as in DGL's user guide, which executes all work of a step in sequence.

    python -m tutorial_lib launch --emulate 2 --part_config data/partitions/.../synthetic-products.json \
      "python benchmarks/guide_loop.py --graph-name synthetic-products"

This is our version of the loop in chapter 7 of DGL's guide (distributed training) and of its GraphSAGE example. A step
samples the neighbors, pulls the features, and runs forward, backward and the optimizer. The hyperparameters are those
of the example, with 3 layers of 256, fan-out 15,10,5 (sampled from the last to the first, so 5 neighbors of each seed),
batch size 1000, Adam at 0.003 and dropout 0.5. It does not use ``tutorial_lib``. The benchmarks time ``train_epoch``.
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
    """GraphSAGE with mean aggregation. The widths are ``in_size``, ``hidden`` between the layers, and ``classes``."""

    def __init__(self, in_size: int, hidden: int, classes: int, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [in_size] + [hidden] * (layers - 1) + [classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks: list, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the seeds from x, a float32 tensor of shape (input nodes, in_size)."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number < len(self.layers) - 1:
                x = self.dropout(F.relu(x))
        return x


def make_loader(graph: dgl.distributed.DistGraph, nodes: torch.Tensor, fanouts: list[int], batch_size: int):
    """Return DGL's loader of shuffled mini-batches."""
    sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
    return dgl.dataloading.DistNodeDataLoader(graph, nodes, sampler, batch_size=batch_size, shuffle=True)


def train_epoch(graph, model: nn.Module, optimizer: torch.optim.Optimizer, loader) -> float:
    """Train on all batches of the loader, and return the mean loss of this rank."""
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
    """Train for some epochs as a process of the job, and print the loss and the seconds of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph-name", required=True)
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server stays in this line until the job ends
    torch.distributed.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(options.graph_name, part_config=os.environ["DGL_CONF_PATH"])
    nodes = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)
    loader = make_loader(graph, nodes, [15, 10, 5], 1000)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 256, options.classes, 3, 0.5)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for number in range(options.epochs):
        start = time.perf_counter()
        loss = train_epoch(graph, model, optimizer, loader)
        print(f"epoch {number}: loss {loss:.4f}, {time.perf_counter() - start:.2f} s", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
