"""Node classification as a task that ``training.fit`` can learn: batches, loss and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.evaluation import accuracy, sum_over_ranks
from tutorial_lib.loaders import Batch, BatchLoader
from tutorial_lib.models import FirstLayer
from tutorial_lib.placement import CPU, Placement
from tutorial_lib.steps import OnBatch, bytes_by_place, no_pulse

if TYPE_CHECKING:
    from tutorial_lib.pipeline.loader import PipelineLoader


@dataclass
class TrainData:
    """What the loop reads: tensors of a plain graph or DistTensors of a distributed one.

    Attributes:
        features: (N, F) float32; labels: (N,) int64; both are indexed with int64 node ids.
        train, val: int64 ids of this process's share of the training and validation nodes.
        place: where the model is; batches are moved there.
    """

    graph: Any
    features: Any
    labels: Any
    train: Tensor
    val: Tensor
    place: Placement = CPU


def pull(data: TrainData, batch: Batch) -> tuple[Tensor | FirstLayer, Tensor]:
    """Features of a batch's input nodes and labels of its seeds; on a DistGraph, partly over the wire."""
    if batch.inputs is not None and batch.labels is not None:
        return batch.inputs, batch.labels
    return data.features[batch.input_nodes], data.labels[batch.seeds].long()


def prepare(data: TrainData, batch: Batch) -> tuple[Any, Tensor | FirstLayer, Tensor]:
    """Blocks, inputs and labels of a batch, where the model is."""
    inputs, labels = pull(data, batch)
    if not isinstance(inputs, FirstLayer):
        return data.place.take(batch.blocks, inputs, labels)
    blocks, own, mean, labels = data.place.take(batch.blocks, inputs.own, inputs.mean, labels)
    return blocks, FirstLayer(own, mean), labels


@dataclass
class NodeTask:
    """See ``training.Task``.

    Attributes:
        batches, val: of the training and of the validation nodes of this rank.
    """

    data: TrainData
    batches: BatchLoader | PipelineLoader
    val: BatchLoader | PipelineLoader | None = None
    sparse_optimizers: Sequence[Any] = ()

    def prepare(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        """See ``prepare``."""
        return prepare(self.data, batch)

    def loss(self, model: nn.Module, prepared: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        """Cross-entropy."""
        blocks, features, labels = prepared
        return F.cross_entropy(model(blocks, features), labels), len(labels)

    def traffic(self, batch: Batch, prepared: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        """Bytes of features from here and from other machines."""
        if batch.bytes_by_place is not None:
            return batch.bytes_by_place
        return bytes_by_place(self.data.graph, batch.input_nodes, prepared[1])

    def validate(self, model: nn.Module, on_batch: OnBatch = no_pulse) -> float:
        """Sampled accuracy."""
        assert self.val is not None
        return sampled_accuracy(model, self.data, self.val, on_batch)


@torch.no_grad()
def sampled_accuracy(
    model: nn.Module, data: TrainData, loader: BatchLoader | PipelineLoader, on_batch: OnBatch = no_pulse
) -> float:
    """Accuracy over all ranks with sampled neighbours: quick, and a little below the exact one."""
    model.eval()
    correct = count = 0
    for number, batch in enumerate(loader, start=1):
        blocks, features, labels = prepare(data, batch)
        correct += int((model(blocks, features).argmax(1) == labels).sum())
        count += len(labels)
        on_batch(number, len(loader))
    return accuracy(*sum_over_ranks([correct, count]))
