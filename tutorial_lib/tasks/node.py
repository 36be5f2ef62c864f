"""Node classification with GraphSAGE on node features."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.nodes import Batch, BatchLoader, rows_of
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.tasks.inference import from_adjacency, from_graph, layerwise_inference
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.tasks.task import Task, split_accuracy
from tutorial_lib.trainer.comm import equal_steps, gather_by_number, own_rank
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult

ROWS = 100_000  # nodes whose outputs are read at a time


class NodeTask(Task):
    """Classify nodes.

    Args:
        train_loader: batches to train on instead of the batches that ``config`` describes.

    Attributes:
        features: float32 of shape (N, F), a tensor or ``DistTensor``. With several types of nodes, a dictionary.
        labels: int64 of shape (N,).
    """

    name = "node"
    typed = False  # whether IDs and features are dictionaries
    uses_pipeline = True

    def __init__(self, shard: Shard, config: TrainConfig, train_loader: Any = None) -> None:
        super().__init__(shard, config)
        self.features, self.labels = self.get_features(), self.get_labels()
        self.model = self.make_model()
        self.nodes = {side: shard.nodes(f"{side}_mask") for side in ("train", "val")}
        self.pipeline = self._make_pipeline() if train_loader is None else None
        self.batches = train_loader or self._loader(self.nodes["train"], train=True)
        self.val = self._loader(self.nodes["val"])

    def get_features(self) -> Any:
        """Return the rows that the first layer reads."""
        return self.shard.data["feat"]

    def get_labels(self) -> Any:
        """Return the labels, which are indexed with int64 node IDs."""
        return self.shard.data["label"]

    def make_model(self) -> nn.Module:
        """Return the model with initial weights."""
        return self.place.model(self.config, self.features.shape[1], self.shard.num_classes)

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the prediction for each row of the model's outputs."""
        return outputs.argmax(1)

    def correct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return which outputs agree with the labels, bool of shape (B,)."""
        return outputs.argmax(1) == labels

    @property
    def split(self) -> dict[str, int]:
        return {f"{side}_nodes": len(ids) for side, ids in self.nodes.items()}

    def inputs(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        """Return blocks, features and labels of a batch on the device of the model."""
        inputs, labels = batch.inputs, batch.labels
        if inputs is None or labels is None:
            inputs, labels = self.features[batch.input_nodes], self.labels[batch.seeds].long()
        if not isinstance(inputs, FirstLayer):
            return self.place.take(batch.blocks, inputs, labels)
        blocks, own, mean, labels = self.place.take(batch.blocks, inputs.own, inputs.mean, labels)
        return blocks, FirstLayer(own, mean), labels

    def loss(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        """Return the cross-entropy."""
        blocks, rows, labels = inputs
        return F.cross_entropy(model(blocks, rows), labels), len(labels)

    def score(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        """Return the number of correct predictions."""
        blocks, rows, labels = inputs
        return int(self.correct(model(blocks, rows), labels).sum()), len(labels)

    def evaluate(self) -> TrainResult:
        shard, config, sampler = self.shard, self.config, self.pipeline and self.pipeline.sampler
        source = from_adjacency(shard, sampler, config.cache) if sampler else from_graph(shard, typed=self.typed)
        outputs = layerwise_inference(self.model, source, self.features, shard, config.eval_batch_size)
        nodes, predictions, correct = shard.own(), [], []
        for ids in nodes.split(ROWS):
            rows = rows_of(outputs, ids)
            predictions.append(self.predict(rows))
            correct.append(self.correct(rows, rows_of(self.labels, ids)))
        val, test = split_accuracy(shard, nodes, torch.cat(correct))
        return TrainResult(val, test, gather_by_number(nodes, torch.cat(predictions), shard.original_nodes())[1])

    def _make_pipeline(self) -> Pipeline | None:
        """Return the pipeline, or None if DGL's loader makes the batches.

        DGL's loader is used if ``--loader`` asks for it, for sampler processes, without servers, and if the servers of
        this machine do not share its memory.
        """
        graph, config = self.shard.graph, self.config
        automatic = config.loader == "auto" and int(os.environ.get("DGL_NUM_SAMPLER", 0))
        local = getattr(graph, "local_partition", None) is not None
        if not (self.uses_pipeline and local) or config.loader == "dgl" or automatic:
            return None
        hops = len(config.fanouts)
        return Pipeline.of(graph, self.features, self.labels, budget=config.cache, hops=hops, depth=config.ahead)

    def _loader(self, ids: Tensor, *, train: bool = False) -> BatchLoader | PipelineLoader:
        config, graph = self.config, self.shard.graph
        steps = equal_steps(len(ids), config.batch_size) if train else None
        common: Any = {"steps": steps, "shuffle": train, "seed": derive_seed(config.seed, own_rank(), train)}
        if self.pipeline is not None:
            means = self.features.shape[1] <= config.hidden_size
            return PipelineLoader(self.pipeline, ids, config.fanouts, config.batch_size, means=means, **common)
        seeds, threads = {self.shard.target: ids} if self.typed else ids, config.sampling_threads
        return BatchLoader(graph, seeds, config.fanouts, config.batch_size, threads=threads, **common)


TASK = NodeTask
