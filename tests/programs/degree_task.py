"""A task as a maintainer would add it: predict the number of neighbors of a node from features.

As ``tutorial_lib/tasks/degree.py``, with ``TaskEntry("degree", "DegreeTask", labels=False, classes=False)`` in
``tasks.TASKS``, it is ``train --task degree``.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.tasks.node import NodeTask


class DegreeTask(NodeTask):
    """The model predicts log(1 + degree). A prediction within a factor of two is correct."""

    name = "degree"
    score_name = "share within a factor of two"
    num_outputs = 1

    def get_labels(self) -> Tensor:
        graph = self.shard.graph  # in a job, the server that holds a node computes its degree
        return graph.in_degrees(torch.arange(graph.num_nodes())).float().log1p()

    def loss(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        blocks, rows, labels = inputs
        return F.mse_loss(model(blocks, rows).flatten(), labels), len(labels)

    def predict_and_compare(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logs = outputs.flatten()
        return logs.expm1().round().long(), (logs - labels).abs() < math.log(2)
