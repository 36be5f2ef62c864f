"""GraphSAGE in one process: the loop of lesson 03 as a script. ``multi_machine`` is the same for many machines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import dgl
import torch
import torch.nn.functional as F

from tutorial_lib.data import load_dataset
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.tasks.evaluation import layerwise_inference
from tutorial_lib.trainer.exchange import accuracy


def train(args: argparse.Namespace, report: Callable[..., None]) -> tuple[Any, GraphSAGE]:
    """The graph and the trained model; ``report`` hears of every step."""
    g = load_dataset(args.dataset, scale=args.scale).graph
    train_ids = g.ndata["train_mask"].nonzero().flatten()
    report("split", nodes=len(train_ids), own=len(train_ids))
    torch.manual_seed(args.seed)
    dgl.seed(args.seed)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 10])
    model = GraphSAGE(g.ndata["feat"].shape[1], 64, args.num_classes, num_layers=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffle = torch.Generator().manual_seed(args.seed)
    for epoch in range(args.num_epochs):
        order = torch.randperm(len(train_ids), generator=shuffle)
        loader = dgl.dataloading.DataLoader(g, train_ids[order], sampler, batch_size=args.batch_size)
        for input_nodes, seeds, blocks in loader:
            loss = F.cross_entropy(model(blocks, g.ndata["feat"][input_nodes]), g.ndata["label"][seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report("loss", epoch=epoch, loss=loss.item())
    return g, model


def evaluate(g: Any, model: GraphSAGE, report: Callable[..., None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Node ids and their logits, over all neighbours; reports how many of the val and test nodes are right."""
    nodes = g.nodes()

    def store(_depth: int, width: int) -> Any:
        return torch.empty(g.num_nodes(), width)

    logits = layerwise_inference(model, g, g.ndata["feat"], nodes, 1000, store)[nodes]
    right = logits.argmax(1) == g.ndata["label"][nodes]
    for name in ("val", "test"):
        chosen = g.ndata[f"{name}_mask"][nodes].bool()
        counts = [int(right[chosen].sum()), int(chosen.sum())]
        report(name, right=counts[0], count=counts[1], accuracy=accuracy(*counts))
    return nodes, logits
