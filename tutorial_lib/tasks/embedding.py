"""Classes of nodes of a graph without features: a row for each node is learned, with GraphSAGE on top.

The rows take the place of features: a job keeps them in a ``DistEmbedding``, so that each machine holds those of its
own part, with the state of their optimiser. Batches, loss and evaluation are those of node classification.

Without features, accuracy says how well the *place* of a node in the graph tells its class. There is no row for a node
that was not in the graph while training; the model cannot be used for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch
from tutorial_lib.errors import InputError
from tutorial_lib.tasks.learned_rows import learned_rows, memory_of, shared_memory
from tutorial_lib.tasks.node import NodeClassification, NodeTask, TrainData, node_task
from tutorial_lib.tasks.task import Share
from tutorial_lib.trainer.config import TrainConfig


@dataclass
class EmbeddingTask(NodeTask):
    """Node classification whose inputs are learned, see ``loop.Task``.

    Attributes:
        embeddings: "node": ``DistEmbedding`` or ``NodeEmbedding``; the ``features`` of ``data`` are its values, to
            evaluate with.
        dropout: share of whole rows that a step does without. With all of them, the row of a training node soon spells
            out its own label, and nothing is left to learn for its neighbours.
    """

    dropout: float = 0.5

    def prepare(self, batch: Batch) -> tuple[Any, Tensor, Tensor]:
        """Blocks, rows of the input nodes, labels of the seeds.

        Rows are read here and not ahead of time: the step before this one may have changed them.
        """
        with torch.enable_grad():
            # A leaf on the CPU: its gradient goes where the row is kept.
            rows = self.embeddings["node"](batch.input_nodes)
            kept = rows * F.dropout(torch.ones(len(rows), 1), self.dropout)
        blocks, labels = self.data.place.take(batch.blocks, self.data.labels[batch.seeds].long())
        return blocks, kept.to(self.data.place.device), labels


class EmbeddingClassification(NodeClassification):
    """GraphSAGE on learned rows. A graph with features will do: they are not read."""

    name = "embedding"
    uses_features = False

    def check(self, facts: Mapping[str, Any]) -> None:
        super().check(facts)
        if not facts["num_classes"]:
            raise InputError(f"{facts['name']}: --task embedding needs labels, and there are none")

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, NodeTask]:
        """See ``TaskSpec``; besides, an ``embedding`` event of each machine tells what it holds."""
        found, optimizer = learned_rows(share, [share.target], config)
        rows, (train, val) = found[share.target], (share.nodes(f"{side}_mask") for side in ("train", "val"))
        data = TrainData(share.graph, rows.weight, share.data["label"], train, val, share.place)
        if share.machine is not None:
            held = {**memory_of(rows, optimizer), "shared_memory": shared_memory()}
            share.emit("embedding", machine=share.machine, **held)
        model = share.place.model(config, config.embedding_size, share.num_classes)
        learned = {"sparse_optimizers": [optimizer], "embeddings": {"node": rows}, "dropout": config.dropout}
        return model, node_task(data, config, kind=EmbeddingTask, **learned)


TASK = EmbeddingClassification()
