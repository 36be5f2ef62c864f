"""Training GraphSAGE for node classification: one loop, for one process and for many.

train_epoch      one pass over this process's batches, counts summed over all ranks
fit              epochs, each followed by a sampled validation
train_single     the same on a plain DGLGraph in this process: what a distributed run must agree with
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable

from tutorial_lib.datasets.base import Dataset
from tutorial_lib.evaluation import accuracy, layerwise_inference, sum_over_ranks
from tutorial_lib.loaders import Batch, BatchLoader
from tutorial_lib.models import GraphSAGE


@dataclass(frozen=True)
class TrainConfig:
    """Hyper-parameters; the defaults are those of the two-machine run in the README.

    Attributes:
        fanouts: neighbours sampled per hop, outermost first; as many layers as hops.
        batch_size: seed nodes per trainer and step.
        eval_batch_size: nodes per batch of the exact evaluation.
    """

    epochs: int = 20
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1000
    hidden_size: int = 256
    dropout: float = 0.5
    learning_rate: float = 0.006
    eval_batch_size: int = 5000
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {**asdict(self), "fanouts": list(self.fanouts)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Inverse of ``to_dict``."""
        return cls(**{**values, "fanouts": tuple(values["fanouts"])})

    def model(self, in_size: int, num_classes: int) -> GraphSAGE:
        """A model whose first weights depend on ``seed`` alone, so that every rank starts with the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return GraphSAGE(in_size, self.hidden_size, num_classes, len(self.fanouts), self.dropout)


@dataclass
class TrainData:
    """What the loop reads: tensors of a plain graph or DistTensors of a distributed one.

    Attributes:
        features: (N, F) float32; labels: (N,) int64; both are indexed with int64 node ids.
        train, val: int64 ids of this process's share of the training and validation nodes.
    """

    graph: Any
    features: Any
    labels: Any
    train: Tensor
    val: Tensor


@dataclass
class EpochResult:
    """One epoch, over all ranks: mean loss per seed node, seconds of the training part, sampled accuracy."""

    epoch: int
    loss: float
    seconds: float
    val_accuracy: float


@dataclass
class TrainResult:
    """What training one model gave; ``predictions`` int64 (N,) in the data set's original order."""

    epochs: list[EpochResult]
    val_accuracy: float
    test_accuracy: float
    predictions: Tensor
    model: GraphSAGE = field(repr=False)


def forward(model: nn.Module, data: TrainData, batch: Batch) -> tuple[Tensor, Tensor]:
    """Pull what a batch needs and compute its logits and labels."""
    logits = model(batch.blocks, data.features[batch.input_nodes])
    return logits, data.labels[batch.seeds].long()


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data: TrainData, loader: BatchLoader) -> float:
    """One pass; returns the mean loss per seed node over all ranks.

    Under ``Join`` a rank that runs out of batches answers the all-reduces of the others until they are
    through; without it they would wait for it for ever.
    """
    model.train()
    loss_sum = torch.zeros((), dtype=torch.float64)
    count = 0
    with Join([model]) if isinstance(model, Joinable) else contextlib.nullcontext():
        for batch in loader:
            logits, labels = forward(model, data, batch)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(labels)
            count += len(labels)
    total, nodes = sum_over_ranks([loss_sum.item(), count])
    return total / nodes


@torch.no_grad()
def sampled_accuracy(model: nn.Module, data: TrainData, loader: BatchLoader) -> float:
    """Accuracy over all ranks with sampled neighbours: quick, and a little below the exact one."""
    model.eval()
    correct = count = 0
    for batch in loader:
        logits, labels = forward(model, data, batch)
        correct += int((logits.argmax(1) == labels).sum())
        count += len(labels)
    return accuracy(*sum_over_ranks([correct, count]))


def fit(
    model: nn.Module,
    data: TrainData,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
) -> list[EpochResult]:
    """Train for ``config.epochs`` epochs. ``model`` is a GraphSAGE, or one wrapped in DistributedDataParallel."""
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    train = BatchLoader(data.graph, data.train, config.fanouts, config.batch_size, shuffle=True)
    val = BatchLoader(data.graph, data.val, config.fanouts, config.batch_size)
    # Evaluation must not go through DDP: its forward would expect a backward on every rank.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    results = []
    for epoch in range(config.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, data, train)
        seconds = time.perf_counter() - start
        results.append(EpochResult(epoch, loss, seconds, sampled_accuracy(plain, data, val)))
        on_epoch(results[-1])
    return results


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
) -> TrainResult:
    """Train and evaluate in this process on the whole graph."""
    import dgl

    torch.manual_seed(config.seed)
    dgl.seed(config.seed)
    graph = dataset.graph
    ids = {name: graph.ndata[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test")}
    data = TrainData(graph, graph.ndata["feat"], graph.ndata["label"], ids["train"], ids["val"])
    model = config.model(dataset.num_features, dataset.num_classes)
    epochs = fit(model, data, config, on_epoch)
    logits = layerwise_inference(
        model,
        graph,
        data.features,
        graph.nodes(),
        config.eval_batch_size,
        lambda _d, w: torch.empty(len(data.labels), w),
    )
    predictions = logits.argmax(1)
    right = predictions == data.labels
    val, test = (accuracy(float(right[ids[name]].sum()), len(ids[name])) for name in ("val", "test"))
    return TrainResult(epochs, val, test, predictions, model)
