"""A task that a new maintainer adds: how many neighbours a node has, from its features and those of its neighbours.

As ``tutorial_lib/tasks/degree.py``, with "degree" in ``tasks.TASKS``, it is ``train --task degree``.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.tasks.node import NodeClassification, NodeTask, TrainData, node_task, pipeline_for
from tutorial_lib.tasks.task import Share, shares_right
from tutorial_lib.trainer.comm import gather_by_number
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult


class Degrees:
    """The labels: in a job, the server that holds a node is asked."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __getitem__(self, nodes: Tensor) -> Tensor:
        return self.graph.in_degrees(nodes)


class DegreeTask(NodeTask):
    """The model says log(1 + degree); it is right within a factor of two."""

    def loss(self, model: nn.Module, prepared: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        blocks, inputs, degrees = prepared
        return F.mse_loss(model(blocks, inputs).flatten(), degrees.float().log1p()), len(degrees)

    def right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.flatten() - labels.float().log1p()).abs() < math.log(2)


class DegreePrediction(NodeClassification):
    name = "degree"
    score = "share within a factor of two"

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, NodeTask]:
        graph, features, degrees = share.graph, share.data["feat"], Degrees(share.graph)
        data = TrainData(graph, features, degrees, share.nodes("train_mask"), share.nodes("val_mask"), share.place)
        task = node_task(data, config, pipeline_for(graph, features, degrees, config), DegreeTask)
        return share.place.model(config, features.shape[1], 1), task

    def evaluate(self, share: Share, model: nn.Module, task: NodeTask, config: TrainConfig) -> TrainResult:
        nodes = share.own()
        outputs = self.outputs(share, model, task, config)[nodes]
        val, test = shares_right(share, nodes, task.right(outputs, task.data.labels[nodes]))
        degrees = outputs.flatten().expm1().round().long()
        return TrainResult(val, test, gather_by_number(nodes, degrees, share.numbers())[1])


TASK = DegreePrediction()
