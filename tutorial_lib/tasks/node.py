"""Node classification with GraphSAGE on node features."""

import os
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.nodes import Batch, BatchLoader
from tutorial_lib.sampling.pipeline import Pipeline, PipelineLoader
from tutorial_lib.tasks.inference import from_adjacency, from_graph, layerwise_inference
from tutorial_lib.tasks.task import Shard, Task, judge_nodes
from tutorial_lib.trainer.comm import equal_steps, own_rank
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import TrainResult


class NodeTask(Task):
    """Classify nodes. Subclasses can override ``get_features``, ``get_labels``, ``make_model`` and ``judge``."""

    name = "node"

    def __init__(self, shard: Shard, config: TrainConfig) -> None:
        super().__init__(shard, config)
        self.features, self.labels = self.get_features(), self.get_labels()
        self.model = self.make_model()
        nodes = {side: shard.nodes(f"{side}_mask") for side in ("train", "val")}
        self.split = {f"{side}_nodes": len(ids) for side, ids in nodes.items()}
        samplers, self.pipeline = int(os.environ.get("DGL_NUM_SAMPLER", 0)), None
        local = getattr(shard.graph, "local_partition", None) is not None  # the servers share their memory
        if local and config.in_pipeline(samplers) and not self.embeddings:
            settings = {"budget": config.cache, "hops": len(config.fanouts), "depth": config.ahead}
            self.pipeline = Pipeline.of(shard.graph, self.features, self.labels, **settings)
        self.batches, self.val = self._loader(nodes["train"], train=True), self._loader(nodes["val"])

    def get_features(self) -> Any:
        return self.shard.data["feat"]

    def get_labels(self) -> Any:
        return self.shard.data["label"]

    def make_model(self) -> nn.Module:
        return self.config.model(self.features.shape[1], self.shard.num_classes).to(self.place.device)

    def judge(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction for each row of the model's outputs, and whether it agrees with the label."""
        predictions = outputs.argmax(1)
        return predictions, predictions == labels

    def inputs(self, batch: Batch) -> tuple[Any, Any, Tensor]:
        rows, labels = batch.inputs, batch.labels
        if rows is None or labels is None:
            rows, labels = self.features[batch.input_nodes], self.labels[batch.seeds].long()
        if not isinstance(rows, FirstLayer):
            return self.place.take(batch.blocks, rows, labels)
        blocks, own, mean, labels = self.place.take(batch.blocks, rows.own, rows.mean, labels)
        return blocks, FirstLayer(own, mean), labels

    def loss(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[Tensor, int]:
        blocks, rows, labels = inputs
        return F.cross_entropy(model(blocks, rows), labels), len(labels)

    def score(self, model: nn.Module, inputs: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        blocks, rows, labels = inputs
        return int(self.judge(model(blocks, rows), labels)[1].sum()), len(labels)

    def evaluate(self) -> TrainResult:
        source = from_adjacency(self.pipeline.sampler, self.config.cache) if self.pipeline else from_graph
        outputs = layerwise_inference(self.model, source, self.features, self.shard, self.config.eval_batch_size)
        return TrainResult(*judge_nodes(self.shard, outputs, self.labels, self.judge), score=self.score_name)

    def _loader(self, ids: Tensor, *, train: bool = False) -> BatchLoader | PipelineLoader:
        config = self.config
        steps = equal_steps(len(ids), config.batch_size) if train else None
        common: Any = {"steps": steps, "shuffle": train, "seed": derive_seed(config.seed, own_rank(), train)}
        if self.pipeline is not None:
            means = self.features.shape[1] <= config.hidden_size
            return PipelineLoader(self.pipeline, ids, config.fanouts, config.batch_size, means=means, **common)
        seeds, threads = {self.shard.target: ids} if self.typed else ids, config.sampling_threads
        return BatchLoader(self.shard.graph, seeds, config.fanouts, config.batch_size, threads=threads, **common)


TASK = NodeTask
