"""A task as a maintainer would add it: predict the number of neighbors of a node from features.

As ``tutorial_lib/tasks/degree.py``, with ``TaskEntry("degree", "DegreeTask", labels=False, classes=False)`` in
``tasks.TASKS``, it is ``train --task degree``.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.sampling.loader import Store
from tutorial_lib.tasks.node import NodeInputs, NodeTask
from tutorial_lib.trainer.comm import barrier


class DegreeTask(NodeTask):
    """The model predicts log(1 + degree). A prediction within a factor of two is correct."""

    name = "degree"
    score_name = "share within a factor of two"
    num_outputs = 1

    def get_labels(self) -> Store:
        shard = self.shard
        degrees, nodes = shard.new_store("degree", 1, shard.target), shard.local_nodes(shard.target)
        degrees[nodes] = shard.graph.in_degrees(nodes).float().log1p()[:, None]
        barrier()  # no rank reads a row before its rank has written it
        return degrees

    def loss(self, model: nn.Module, inputs: NodeInputs) -> tuple[Tensor, int]:
        blocks, rows, labels = inputs
        return F.mse_loss(model(blocks, rows).flatten(), labels.flatten()), len(labels)

    def predict_and_compare(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logs = outputs.flatten()
        return logs.expm1().round().long(), (logs - labels.flatten()).abs() < math.log(2)
