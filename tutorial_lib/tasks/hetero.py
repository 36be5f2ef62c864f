"""Classes of the nodes of one type, in a graph with several types of nodes and edges: R-GCN.

Types with features put them in; for each node of the others a row is learned, which in a job lies on the machine that
has the node (``DistEmbedding``). The loop, the checkpoints and the events are those of the other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch, BatchLoader, rows_of
from tutorial_lib.errors import InputError
from tutorial_lib.models.rgcn import RGCN
from tutorial_lib.tasks.evaluation import layerwise_inference
from tutorial_lib.tasks.learned_rows import learned_rows
from tutorial_lib.tasks.node import NodeTask
from tutorial_lib.tasks.shares import Share
from tutorial_lib.tasks.task import TaskSpec, class_scores
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Pulse, bytes_by_place
from tutorial_lib.trainer.loop import TrainResult


@dataclass
class TypedData:
    """What the loop reads: tensors of a plain graph or DistTensors of a distributed one.

    Attributes:
        target: type of the nodes to classify; ``labels`` (N of it,), ``train`` and ``val`` are theirs, type-wise.
        features: by type, float32 (N of it, F); not of every type.
        rows: by type, ``DistEmbedding`` or ``NodeEmbedding`` of the types without features.
    """

    graph: Any
    target: str
    features: Mapping[str, Any]
    rows: Mapping[str, Any]
    labels: Any
    train: Tensor
    val: Tensor

    def pull(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Rows of the input nodes by type, and labels of the seeds; on a DistGraph, partly over the wire."""
        found = {name: rows_of(store, batch.input_nodes[name]) for name, store in self.features.items()}
        for name, rows in self.rows.items():
            ids = batch.input_nodes[name]
            found[name] = rows(ids) if len(ids) else rows_of(rows.weight, ids)
        return found, self.labels[batch.seeds[self.target]].long()

    def stores(self) -> dict[str, Any]:
        """By type, what the first layer reads."""
        return {**self.features, **{name: rows.weight for name, rows in self.rows.items()}}


@dataclass
class HeteroTask(NodeTask):
    """See ``loop.Task``."""

    @property
    def embeddings(self) -> Mapping[str, Any]:
        """See ``NodeTask``."""
        return self.data.rows

    def inputs(self, batch: Batch) -> tuple[list[Any], dict[str, Tensor], Tensor]:
        """Blocks, rows of the input nodes, labels of the seeds. With gradients, learned rows remember what was read."""
        return batch.blocks, *self.data.pull(batch)

    def traffic(self, batch: Batch, prepared: tuple[Any, Any, Tensor]) -> tuple[int, int]:
        """Bytes of features and learned rows from here and from other machines."""
        return bytes_by_place(self.data.graph, batch.input_nodes, prepared[1])


def hetero_task(data: TypedData, config: TrainConfig, optimizer: Any) -> HeteroTask:
    """The task with the batches that ``config`` says."""
    size, threads = config.batch_size, config.sampling_threads
    train = BatchLoader(data.graph, {data.target: data.train}, config.fanouts, size, shuffle=True, threads=threads)
    val = BatchLoader(data.graph, {data.target: data.val}, config.fanouts, size, threads=threads)
    return HeteroTask(data, train, val, [optimizer])


def model_for(graph: Any, target: str, num_classes: int, config: TrainConfig) -> RGCN:
    """A model whose first weights depend on ``config.seed`` alone; ``graph`` may be a ``DistGraph``."""
    with_features = [name for name in graph.ntypes if "feat" in graph.nodes[name].data]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RGCN(
            graph.canonical_etypes,
            target,
            {name: graph.nodes[name].data["feat"].shape[1] for name in with_features},
            config.embedding_size,
            config.hidden_size,
            num_classes,
            len(config.fanouts),
            config.dropout,
        )


class HeteroClassification(TaskSpec):
    """R-GCN on features and learned rows."""

    name = "hetero"
    on_gpu = False

    def check(self, facts: Mapping[str, Any]) -> None:
        """See ``TaskSpec``."""
        if "target" not in facts:
            raise InputError(
                f"{facts['name']}: --task hetero needs a graph with several types of nodes, this one has one",
                "Take --dataset synthetic-academic, or --task node.",
            )

    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, HeteroTask]:
        """See ``TaskSpec``."""
        graph, (train, val) = share.graph, (share.nodes(f"{side}_mask") for side in ("train", "val"))
        model = model_for(graph, share.target, share.num_classes, config)
        rows, optimizer = learned_rows(share, [name for name in model.types[0] if name not in model.project], config)
        features = {name: graph.nodes[name].data["feat"] for name in model.project}
        data = TypedData(graph, share.target, features, rows, share.data["label"], train, val)
        return model, hetero_task(data, config, optimizer)

    def evaluate(self, share: Share, model: nn.Module, task: HeteroTask, config: TrainConfig) -> TrainResult:
        """Predict every node of the target type over all its neighbours."""
        nodes, pulse = {name: share.own(name) for name in share.graph.ntypes}, Pulse(share.emit, "evaluation")
        settings = (config.eval_batch_size, share.new_store, share.barrier, pulse)
        logits = layerwise_inference(model, share.graph, task.data.stores(), nodes, *settings)
        return class_scores(share, logits)


TASK = HeteroClassification()
