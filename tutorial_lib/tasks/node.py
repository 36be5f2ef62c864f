"""Classes of nodes from their features: the task that is learned, on a job's ranks and in one process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch, BatchLoader, rows_of
from tutorial_lib.batches.pipeline import Pipeline, PipelineLoader
from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.models.sage import FirstLayer
from tutorial_lib.tasks.evaluation import layerwise_inference, layerwise_over_part
from tutorial_lib.tasks.task import ROWS, Share, TaskSpec, shares_right
from tutorial_lib.trainer.comm import equal_steps, gather_by_number, own_rank
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Pulse
from tutorial_lib.trainer.loop import Task, TrainResult
from tutorial_lib.trainer.placement import CPU, Placement


@dataclass
class TrainData:
    """What the loop reads: tensors of a plain graph or DistTensors of a distributed one.

    Attributes:
        features: (N, F) float32; in a graph with several types, by type.
        labels: (N,) int64; like features, indexed with int64 node ids.
        train, val: int64 ids of this process's share of the training and validation nodes.
        place: where the model is; batches are moved there.
        target: type of the nodes with labels, in a graph with several types.
    """

    graph: Any
    features: Any
    labels: Any
    train: Tensor
    val: Tensor
    place: Placement = CPU
    target: str | None = None


@dataclass
class NodeTask(Task):
    """See ``loop.Task``: ``data`` is a ``TrainData``."""

    @property
    def split(self) -> dict[str, int]:
        """Numbers of nodes of this rank."""
        return {"train_nodes": len(self.data.train), "val_nodes": len(self.data.val)}

    def inputs(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        """Blocks, features and labels of a batch; on a DistGraph they come partly over the wire."""
        inputs, labels = batch.inputs, batch.labels
        if inputs is None or labels is None:
            inputs, labels = self.data.features[batch.input_nodes], self.data.labels[batch.seeds].long()
        if not isinstance(inputs, FirstLayer):
            return self.data.place.take(batch.blocks, inputs, labels)
        blocks, own, mean, labels = self.data.place.take(batch.blocks, inputs.own, inputs.mean, labels)
        return blocks, FirstLayer(own, mean), labels

    def loss(self, model: nn.Module, prepared: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        """Cross-entropy."""
        blocks, inputs, labels = prepared
        return F.cross_entropy(model(blocks, inputs), labels), len(labels)

    def score(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        """How many are right."""
        blocks, rows, labels = inputs
        return int(self.right(model(blocks, rows), labels).sum()), len(labels)

    def right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """bool (B,): which outputs of the model say what the labels say."""
        return outputs.argmax(1) == labels


def node_task(
    data: TrainData, config: TrainConfig, pipeline: Pipeline | None = None, kind: type[NodeTask] = NodeTask, **more: Any
) -> NodeTask:
    """A ``kind`` of NodeTask with the batches that ``config`` says, from the pipeline or else from DGL's loader."""

    def loader(ids: Tensor, *, train: bool = False) -> BatchLoader | PipelineLoader:
        steps = equal_steps(len(ids), config.batch_size) if train else None
        common: Any = {"steps": steps, "shuffle": train, "seed": derive_seed(config.seed, own_rank(), train)}
        if pipeline is not None:
            means = data.features.shape[1] <= config.hidden_size
            return PipelineLoader(pipeline, ids, config.fanouts, config.batch_size, means=means, **common)
        seeds, threads = ids if data.target is None else {data.target: ids}, config.sampling_threads
        return BatchLoader(data.graph, seeds, config.fanouts, config.batch_size, threads=threads, **common)

    return kind(data, loader(data.train, train=True), loader(data.val), **more)


def pipeline_for(graph: Any, features: Any, labels: Any, config: TrainConfig) -> Pipeline | None:
    """The pipeline of this trainer; None where DGL's loader is asked for, or "auto" finds a reason for it.

    The reasons: sampler processes, which draw elsewhere; servers on other machines than the trainers; no servers.
    """
    if config.loader == "dgl" or (config.loader == "auto" and int(os.environ.get("DGL_NUM_SAMPLER", 0))):
        return None
    if getattr(graph, "local_partition", None) is None:
        return None
    hops = len(config.fanouts)
    return Pipeline.of(graph, features, labels, budget=config.cache, hops=hops, depth=config.ahead)


class NodeClassification(TaskSpec):
    """GraphSAGE on features."""

    name = "node"

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, NodeTask]:
        graph, features, labels = share.graph, share.data["feat"], share.data["label"]
        data = TrainData(graph, features, labels, share.nodes("train_mask"), share.nodes("val_mask"), share.place)
        model = share.place.model(config, features.shape[1], share.num_classes)
        return model, node_task(data, config, pipeline_for(graph, features, labels, config))

    def evaluate(self, share: Share, model: nn.Module, task: NodeTask, config: TrainConfig) -> TrainResult:
        logits, nodes = self.outputs(share, model, task, config), share.own()
        predictions = torch.cat([rows_of(logits, part).argmax(1) for part in nodes.split(ROWS)])
        val, test = shares_right(share, nodes, predictions == rows_of(share.data["label"], nodes))
        return TrainResult(val, test, gather_by_number(nodes, predictions, share.numbers())[1])

    def outputs(self, share: Share, model: nn.Module, task: NodeTask, config: TrainConfig) -> Any:
        """The model's outputs for every node (of the target type) over all its neighbours, (N, outputs), in a store.

        Each trainer does a share of its own machine's part, and writes only rows that its machine holds. Such a write
        has happened when the call returns; one to another machine has not, and no barrier tells when: a reader could
        still see zeros.
        """
        data, pulse = task.data, Pulse(share.emit, "evaluation")
        nodes = share.own() if data.target is None else {name: share.own(name) for name in share.graph.ntypes}
        common = (data.features, nodes, config.eval_batch_size, share.new_store, share.barrier, pulse, data.place)
        pipeline = getattr(task.batches, "pipeline", None)
        if pipeline is None:
            return layerwise_inference(model, share.graph, *common)
        share.emit("kept", pipeline=pipeline.describe())
        return layerwise_over_part(model, pipeline.lists, *common, budget=config.cache)


TASK = NodeClassification()
