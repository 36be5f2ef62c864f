"""Node classification without features: GraphSAGE on one learnable embedding per node.

The embeddings take the place of the features. The accuracy then shows how well the position of a node in the graph
predicts its class. The model has no embedding for a node that was not in the graph during training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.sampling.nodes import Batch
from tutorial_lib.tasks.learnable import learnable_embeddings
from tutorial_lib.tasks.node import NodeTask


class EmbeddingTask(NodeTask):
    """Classify nodes by learnable embeddings. Features of the graph are ignored."""

    name = "embedding"
    uses_features = False
    uses_pipeline = False

    def get_features(self) -> Any:
        target = self.shard.target
        created, optimizer = learnable_embeddings(self.shard, [target], self.config)
        self.embeddings, self.sparse_optimizers = {"node": created[target]}, [optimizer]
        return created[target].weight

    def inputs(self, batch: Batch) -> tuple[Any, Tensor, Tensor]:
        """Return blocks, embeddings of the input nodes and labels of the seeds.

        In training, the gradient of the embeddings goes back to where they are stored, and whole rows are dropped.
        Otherwise the row of a training node soon encodes its own label, and its neighbors have nothing left to learn.
        """
        if torch.is_grad_enabled():
            rows = self.embeddings["node"](batch.input_nodes)
            rows = rows * F.dropout(torch.ones(len(rows), 1), self.config.dropout)
        else:
            rows = self.features[batch.input_nodes]
        blocks, labels = self.place.take(batch.blocks, self.labels[batch.seeds].long())
        return blocks, rows.to(self.place.device), labels


TASK = EmbeddingTask
