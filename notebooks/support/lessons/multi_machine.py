"""GraphSAGE on many machines: ``multi_machine_single`` with the changes of DGL's guide, chapter 7.

Servers and trainers run the same command: in a server, ``initialize`` serves and does not return.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.tasks.evaluation import layerwise_inference
from tutorial_lib.trainer.events import EventWriter
from tutorial_lib.trainer.exchange import accuracy, sum_over_ranks


def train(args: argparse.Namespace, report: Callable[..., None]) -> tuple[Any, GraphSAGE]:
    """The graph and the trained model; ``report`` hears of every step."""
    dgl.distributed.initialize(args.ip_config, use_graphbolt=args.use_graphbolt)
    dist.init_process_group(backend="gloo")
    g = dgl.distributed.DistGraph(args.graph_name, part_config=args.part_config)
    book = g.get_partition_book()
    train_ids = dgl.distributed.node_split(g.ndata["train_mask"], book, force_even=True)
    report("split", nodes=len(train_ids), own=int((book.nid2partid(train_ids) == book.partid).sum()))
    torch.manual_seed(args.seed)
    dgl.seed(args.seed + dist.get_rank())
    sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 10])
    model = GraphSAGE(g.ndata["feat"].shape[1], 64, args.num_classes, num_layers=2, dropout=0.0)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffle = torch.Generator().manual_seed(args.seed)
    for epoch in range(args.num_epochs):
        order = torch.randperm(len(train_ids), generator=shuffle)
        loader = dgl.dataloading.DistNodeDataLoader(g, train_ids[order], sampler, batch_size=args.batch_size)
        with Join([model]):
            for input_nodes, seeds, blocks in loader:
                loss = F.cross_entropy(model(blocks, g.ndata["feat"][input_nodes]), g.ndata["label"][seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                report("loss", epoch=epoch, loss=loss.item())
    return g, model.module


def evaluate(g: Any, model: GraphSAGE, report: Callable[..., None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Node ids of this rank and their logits, over all neighbours; reports its own counts and the global accuracy."""
    everyone = torch.ones(g.num_nodes(), dtype=torch.bool)
    nodes = dgl.distributed.node_split(everyone, g.get_partition_book(), force_even=False)

    def store(depth: int, width: int) -> Any:
        return dgl.distributed.DistTensor((g.num_nodes(), width), torch.float32, name=f"layer-{depth}")

    logits = layerwise_inference(model, g, g.ndata["feat"], nodes, 1000, store, dist.barrier)[nodes]
    right = logits.argmax(1) == g.ndata["label"][nodes]
    for name in ("val", "test"):
        chosen = g.ndata[f"{name}_mask"][nodes].bool()
        counts = [int(right[chosen].sum()), int(chosen.sum())]
        report(name, right=counts[0], count=counts[1], accuracy=accuracy(*sum_over_ranks(counts)))
    return nodes, logits


def main(args: argparse.Namespace) -> None:
    """Train, evaluate, and write the weights (rank 0) and the logits of this rank's nodes."""
    g, model = train(args, report=EventWriter().emit)
    nodes, logits = evaluate(g, model, report=EventWriter().emit)
    np.savez(Path(args.out) / f"logits-{dist.get_rank()}.npz", nodes=nodes.numpy(), logits=logits.numpy())
    if dist.get_rank() == 0:
        save_file(model.state_dict(), Path(args.out) / "model.safetensors")
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ip_config")
    parser.add_argument("--part_config")
    parser.add_argument("--graph_name")
    parser.add_argument("--num_classes", type=int)
    parser.add_argument("--num_epochs", type=int)
    parser.add_argument("--batch_size", type=int, help="of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--use_graphbolt", action="store_true")
    parser.add_argument("--out")
    main(parser.parse_args())
