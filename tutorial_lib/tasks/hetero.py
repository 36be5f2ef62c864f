"""Classes of the nodes of one type, in a graph with several types of nodes and edges: R-GCN.

Types with features put them in; for each node of the others a row is learned, which in a job lies on the machine that
has the node (``DistEmbedding``). The loop, the checkpoints and the events are those of the other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch, rows_of
from tutorial_lib.errors import InputError
from tutorial_lib.models.rgcn import RGCN
from tutorial_lib.tasks.learned_rows import learned_rows
from tutorial_lib.tasks.node import NodeClassification, NodeTask, TrainData, node_task
from tutorial_lib.tasks.task import Share
from tutorial_lib.trainer.config import TrainConfig


class HeteroTask(NodeTask):
    """See ``loop.Task``; the ``features`` of ``data`` are what the first layer reads, of some types embeddings."""

    def inputs(self, batch: Batch) -> tuple[list[Any], dict[str, Tensor], Tensor]:
        """Blocks, rows of the input nodes, labels of the seeds. With gradients, learned rows remember what was read."""
        found = {}
        for name, store in self.data.features.items():
            ids = batch.input_nodes[name]
            learned = name in self.embeddings and len(ids)
            found[name] = self.embeddings[name](ids) if learned else rows_of(store, ids)
        return batch.blocks, found, self.data.labels[batch.seeds[self.data.target]].long()


def model_for(graph: Any, target: str, num_classes: int, config: TrainConfig) -> RGCN:
    """A model whose first weights depend on ``config.seed`` alone; ``graph`` may be a ``DistGraph``."""
    features = {name: graph.nodes[name].data for name in graph.ntypes}
    widths = {name: data["feat"].shape[1] for name, data in features.items() if "feat" in data}
    sizes = (config.embedding_size, config.hidden_size, num_classes, len(config.fanouts), config.dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RGCN(graph.canonical_etypes, target, widths, *sizes)


class HeteroClassification(NodeClassification):
    """R-GCN on features and learned rows."""

    name = "hetero"
    on_gpu = False

    def check(self, facts: Mapping[str, Any]) -> None:
        if "target" not in facts:
            text = f"{facts['name']}: --task hetero needs a graph with several types of nodes, this one has one"
            raise InputError(text, "Take --dataset synthetic-academic, or --task node.")

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, NodeTask]:
        graph, (train, val) = share.graph, (share.nodes(f"{side}_mask") for side in ("train", "val"))
        model = model_for(graph, share.target, share.num_classes, config)
        rows, optimizer = learned_rows(share, [name for name in model.types[0] if name not in model.project], config)
        features = {name: graph.nodes[name].data["feat"] for name in model.project}
        features |= {name: learned.weight for name, learned in rows.items()}
        data = TrainData(graph, features, share.data["label"], train, val, share.place, share.target)
        return model, node_task(data, config, kind=HeteroTask, sparse_optimizers=[optimizer], embeddings=rows)


TASK = HeteroClassification()
