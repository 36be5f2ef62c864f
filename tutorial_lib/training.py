"""The training loop: one, for every task, for one process and for many.

Task             what is learned and from which batches; node classification is one
train_task       one pass over this process's batches, counts summed over all ranks
fit              epochs, each followed by a validation
train_single     node classification on a plain DGLGraph in this process: what a distributed run must agree with
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tutorial_lib.datasets.base import Dataset
from tutorial_lib.evaluation import accuracy, layerwise_inference, sum_over_ranks
from tutorial_lib.loaders import BatchLoader
from tutorial_lib.models import GraphSAGE
from tutorial_lib.node_task import NodeTask, TrainData
from tutorial_lib.placement import CPU, Placement
from tutorial_lib.protocols import Saver, Task
from tutorial_lib.sparse_join import joined
from tutorial_lib.steps import Emit, Pulse, StepLog, no_events

if TYPE_CHECKING:
    from tutorial_lib.pipeline.loader import Pipeline


@dataclass(frozen=True)
class TrainConfig:
    """Hyper-parameters; the defaults are those of the two-machine run in the README.

    Attributes:
        fanouts: neighbours sampled per hop, outermost first; as many layers as hops.
        batch_size: seed nodes per trainer and step.
        eval_batch_size: nodes per batch of the exact evaluation.
        sampling_threads: of each trainer; with one, equal seeds draw equal batches.
        task: one of ``tasks.TASKS``.
        embedding_size, embedding_learning_rate: of rows that are learned, where a task has them.
        negatives: nodes drawn against each edge, where a task has edges.
        loader: where batches of a distributed run come from: "pipeline", "dgl", or "auto", see ``pipeline``.
        cache: bytes of each trainer for what comes from other machines, in the pipeline.
        ahead: batches that are made ahead of their use, in the pipeline.
        half_wire: rows of features cross the wire as float16, rounded; in the pipeline.
    """

    epochs: int = 20
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1000
    hidden_size: int = 256
    dropout: float = 0.5
    learning_rate: float = 0.006
    eval_batch_size: int = 5000
    seed: int = 0
    sampling_threads: int = 1
    task: str = "node"
    embedding_size: int = 64
    embedding_learning_rate: float = 0.01
    negatives: int = 1
    loader: str = "auto"
    cache: int = 256_000_000
    ahead: int = 2
    half_wire: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {**asdict(self), "fanouts": list(self.fanouts)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Inverse of ``to_dict``."""
        return cls(**{**values, "fanouts": tuple(values["fanouts"])})

    def model(self, in_size: int, num_classes: int, *, plain: bool = False) -> GraphSAGE:
        """A model whose first weights depend on ``seed`` alone, so that every rank starts with the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return GraphSAGE(in_size, self.hidden_size, num_classes, len(self.fanouts), self.dropout, plain=plain)


@dataclass
class EpochResult:
    """One epoch, over all ranks: mean loss per seed node, seconds of the training part, sampled accuracy."""

    epoch: int
    loss: float
    seconds: float
    val_accuracy: float


@dataclass
class TrainResult:
    """What training one model gave.

    Attributes:
        val_accuracy, test_accuracy: the task's main score, see ``tasks.score_name``.
        predictions: int64 (N,) in the data set's original order; None where a task predicts no classes.
        scores: other scores, by name.
    """

    epochs: list[EpochResult]
    val_accuracy: float
    test_accuracy: float
    predictions: Tensor | None
    model: nn.Module = field(repr=False)
    scores: dict[str, float] = field(default_factory=dict)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: TrainData,
    loader: BatchLoader,
    *,
    epoch: int = 0,
    emit: Emit = no_events,
) -> float:
    """``train_task`` for node classification with the batches of ``loader``."""
    return train_task(model, optimizer, NodeTask(data, loader), epoch=epoch, emit=emit)


def train_task(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, *, epoch: int = 0, emit: Emit = no_events
) -> float:
    """One pass; returns the mean loss per example over all ranks. Each step is an event, see ``steps``.

    Under ``Join`` a rank that runs out of batches answers the all-reduces of the others, and their exchanges of
    gradients of rows, until they are through; without it they would wait for it for ever.

    Raises:
        FloatingPointError: this rank's loss is not a finite number.
    """
    model.train()
    loss_sum, count = 0.0, 0
    log = StepLog(emit, epoch, len(task.batches))
    with joined(model, task.sparse_optimizers):
        for batch in task.batches:
            log.received(getattr(batch, "seconds", None))
            prepared = task.prepare(batch)
            log.lap("pull")
            loss, examples = task.loss(model, prepared)
            value = finite(loss.item(), epoch, log.step)
            log.lap("forward")
            for each in (optimizer, *task.sparse_optimizers):
                each.zero_grad()
            loss.backward()
            log.lap("backward")
            optimizer.step()
            for sparse in task.sparse_optimizers:
                sparse.step()
            log.lap("update")
            loss_sum += value * examples
            count += examples
            log.done(value, *task.traffic(batch, prepared))
    total, examples = sum_over_ranks([loss_sum, count])
    log.close()
    return total / examples


def finite(loss: float, epoch: int, step: int) -> float:
    """The loss; a FloatingPointError that says where and what to do if it is not a finite number."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"loss is {loss} in epoch {epoch + 1}, step {step + 1}; try a smaller --learning-rate, or check the "
            "features for values that are not finite"
        )
    return loss


def node_task(data: TrainData, config: TrainConfig, pipeline: Pipeline | None = None) -> NodeTask:
    """Node classification with the batches that ``config`` says, from the pipeline or else from DGL's loader."""
    size, threads = config.batch_size, config.sampling_threads
    if pipeline is not None:
        from tutorial_lib.pipeline.loader import PipelineLoader

        means = data.features.shape[1] <= config.hidden_size
        train = PipelineLoader(pipeline, data.train, config.fanouts, size, shuffle=True, means=means)
        return NodeTask(data, train, PipelineLoader(pipeline, data.val, config.fanouts, size, means=means))
    train = BatchLoader(data.graph, data.train, config.fanouts, size, shuffle=True, threads=threads)
    return NodeTask(data, train, BatchLoader(data.graph, data.val, config.fanouts, size, threads=threads))


def fit(
    model: nn.Module,
    task: Task,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
    *,
    emit: Emit = no_events,
    saver: Saver | None = None,
) -> list[EpochResult]:
    """Train until ``config.epochs`` epochs are finished, those of a checkpoint included; returns all of them.

    Args:
        model: a GraphSAGE, or one wrapped in DistributedDataParallel.
        on_epoch: called after each epoch that is trained here.
        emit: takes the events of steps and of validation.
        saver: keeps checkpoints, and may have one to continue from.
    """
    from tutorial_lib.seeding import start_epoch

    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    # Evaluation must not go through DDP: its forward would expect a backward on every rank.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    results = [EpochResult(**epoch) for epoch in (saver.restore(plain, optimizer) if saver else [])]
    for epoch in range(len(results), config.epochs):
        start_epoch(config.seed, epoch)
        start = time.perf_counter()
        loss = train_task(model, optimizer, task, epoch=epoch, emit=emit)
        seconds = time.perf_counter() - start
        val_accuracy = task.validate(plain, Pulse(emit, "validation"))
        results.append(EpochResult(epoch, loss, seconds, val_accuracy))
        on_epoch(results[-1])
        if saver:
            saver.save(plain, optimizer, [asdict(result) for result in results], last=epoch == config.epochs - 1)
    return results


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
    *,
    emit: Emit = no_events,
    saver: Saver | None = None,
    place: Placement = CPU,
) -> TrainResult:
    """Train and evaluate in this process on the whole graph; the arguments are those of ``fit``."""
    graph = dataset.graph
    ids = {name: graph.ndata[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test")}
    data = TrainData(graph, graph.ndata["feat"], graph.ndata["label"], ids["train"], ids["val"], place)
    model = place.model(config, dataset.num_features, dataset.num_classes)
    epochs = fit(model, node_task(data, config), config, on_epoch, emit=emit, saver=saver)
    return evaluate_single(model, data, config, ids, epochs, emit)


def evaluate_single(
    model: GraphSAGE,
    data: TrainData,
    config: TrainConfig,
    ids: dict[str, Tensor],
    epochs: list[EpochResult],
    emit: Emit = no_events,
) -> TrainResult:
    """Predict every node over all its neighbours; ``ids`` has the nodes of "val" and "test"."""
    logits = layerwise_inference(
        model,
        data.graph,
        data.features,
        data.graph.nodes(),
        config.eval_batch_size,
        lambda _d, w: torch.empty(len(data.labels), w),
        on_batch=Pulse(emit, "evaluation"),
        place=data.place,
    )
    predictions = logits.argmax(1)
    right = predictions == data.labels
    val, test = (accuracy(float(right[ids[name]].sum()), len(ids[name])) for name in ("val", "test"))
    return TrainResult(epochs, val, test, predictions, model)
