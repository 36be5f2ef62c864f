"""Classes of nodes from their features: the task that is learned, on a job's ranks and in one process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch, BatchLoader
from tutorial_lib.batches.pipeline import Pipeline, PipelineLoader
from tutorial_lib.models.sage import FirstLayer
from tutorial_lib.tasks import check_one_type
from tutorial_lib.tasks.evaluation import layerwise_inference, layerwise_over_part
from tutorial_lib.tasks.shares import Share
from tutorial_lib.tasks.task import TaskSpec, class_scores
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import OnBatch, Pulse, bytes_by_place, no_pulse
from tutorial_lib.trainer.exchange import accuracy, sum_over_ranks
from tutorial_lib.trainer.loop import TrainResult
from tutorial_lib.trainer.placement import CPU, Placement


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


@dataclass
class NodeTask:
    """See ``loop.Task``.

    Attributes:
        batches, val: of the training and of the validation nodes of this rank.
    """

    data: Any
    batches: BatchLoader | PipelineLoader
    val: BatchLoader | PipelineLoader | None = None
    sparse_optimizers: Sequence[Any] = ()

    @property
    def embeddings(self) -> Mapping[str, Any]:
        """Rows that are learned besides the model's weights, by name."""
        return {}

    @property
    def split(self) -> dict[str, int]:
        """Numbers of nodes of this rank."""
        return {"train_nodes": len(self.data.train), "val_nodes": len(self.data.val)}

    def inputs(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        """Blocks, inputs and labels of a batch, where the model is."""
        inputs, labels = pull(self.data, batch)
        if not isinstance(inputs, FirstLayer):
            return self.data.place.take(batch.blocks, inputs, labels)
        blocks, own, mean, labels = self.data.place.take(batch.blocks, inputs.own, inputs.mean, labels)
        return blocks, FirstLayer(own, mean), labels

    def prepare(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        """``inputs``, to learn from."""
        return self.inputs(batch)

    def loss(self, model: nn.Module, prepared: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        """Cross-entropy."""
        blocks, inputs, labels = prepared
        return F.cross_entropy(model(blocks, inputs), labels), len(labels)

    def traffic(self, batch: Batch, prepared: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        """Bytes of features from here and from other machines."""
        if batch.bytes_by_place is not None:
            return batch.bytes_by_place
        return bytes_by_place(self.data.graph, batch.input_nodes, prepared[1])

    def right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """bool (B,): which outputs of the model say what the labels say."""
        return outputs.argmax(1) == labels

    @torch.no_grad()
    def validate(self, model: nn.Module, on_batch: OnBatch = no_pulse) -> float:
        """Accuracy over all ranks with sampled neighbours: quick, and a little below the exact one."""
        assert self.val is not None
        model.eval()
        correct = count = 0
        for number, batch in enumerate(self.val, start=1):
            blocks, inputs, labels = self.inputs(batch)
            correct += int(self.right(model(blocks, inputs), labels).sum())
            count += len(labels)
            on_batch(number, len(self.val))
        return accuracy(*sum_over_ranks([correct, count]))


def node_task(data: TrainData, config: TrainConfig, pipeline: Pipeline | None = None) -> NodeTask:
    """Node classification with the batches that ``config`` says, from the pipeline or else from DGL's loader."""
    size, threads = config.batch_size, config.sampling_threads
    if pipeline is not None:
        means = data.features.shape[1] <= config.hidden_size
        train = PipelineLoader(pipeline, data.train, config.fanouts, size, shuffle=True, means=means)
        return NodeTask(data, train, PipelineLoader(pipeline, data.val, config.fanouts, size, means=means))
    train = BatchLoader(data.graph, data.train, config.fanouts, size, shuffle=True, threads=threads)
    return NodeTask(data, train, BatchLoader(data.graph, data.val, config.fanouts, size, threads=threads))


def pipeline_for(graph: Any, features: Any, labels: Any, config: TrainConfig) -> Pipeline | None:
    """The pipeline of this trainer; None where DGL's loader is asked for, or "auto" finds a reason for it.

    The reasons: sampler processes, which draw elsewhere; servers on other machines than the trainers; no servers.
    """
    if config.loader == "dgl" or (config.loader == "auto" and int(os.environ.get("DGL_NUM_SAMPLER", 0))):
        return None
    if getattr(graph, "local_partition", None) is None:
        return None
    return Pipeline.of(
        graph,
        features,
        labels,
        budget=config.cache,
        hops=len(config.fanouts),
        depth=config.ahead,
        half=config.half_wire,
    )


class NodeClassification(TaskSpec):
    """GraphSAGE on features."""

    name = "node"

    def check(self, facts: Mapping[str, Any]) -> None:
        """See ``TaskSpec``."""
        check_one_type(facts, self.name)
        super().check(facts)

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, NodeTask]:
        """See ``TaskSpec``."""
        graph, features, labels = share.graph, share.data["feat"], share.data["label"]
        data = TrainData(graph, features, labels, share.nodes("train_mask"), share.nodes("val_mask"), share.place)
        model = share.place.model(config, features.shape[1], share.num_classes)
        return model, node_task(data, config, pipeline_for(graph, features, labels, config))

    def evaluate(self, share: Share, model: nn.Module, task: NodeTask, config: TrainConfig) -> TrainResult:
        """See ``TaskSpec``."""
        return class_scores(share, self.outputs(share, model, task, config))

    def outputs(self, share: Share, model: nn.Module, task: NodeTask, config: TrainConfig) -> Any:
        """The model's outputs for every node over all its neighbours, (N, outputs), in a store.

        Each trainer does a share of its own machine's part, and writes only rows that its machine holds. Such a write
        has happened when the call returns; one to another machine has not, and no barrier tells when: a reader could
        still see zeros.
        """
        data, pulse = task.data, Pulse(share.emit, "evaluation")
        common = (data.features, share.own(), config.eval_batch_size, share.new_store, share.barrier, pulse, data.place)
        pipeline = getattr(task.batches, "pipeline", None)
        if pipeline is None:
            return layerwise_inference(model, share.graph, *common)
        share.emit("kept", pipeline=pipeline.describe())
        return layerwise_over_part(model, pipeline.lists, *common, budget=config.cache)


TASK = NodeClassification()
