"""Classes of nodes from their features: the task that is learned, on a job's ranks and in one process.

NodeTask      batches, loss and sampled validation, as ``trainer.loop`` asks for them
run           what each rank of a job does: learn, predict every node exactly, report
train_single  the same in this process on a plain DGLGraph: what a job must agree with
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.nodes import Batch, BatchLoader
from tutorial_lib.batches.pipeline import Pipeline, PipelineLoader
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.models.sage import FirstLayer, GraphSAGE
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks import check_one_type
from tutorial_lib.tasks.evaluation import accuracy, layerwise_inference, sum_over_ranks
from tutorial_lib.tasks.part_inference import layerwise_over_part
from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.exchange import gather
from tutorial_lib.trainer.loop import EpochResult, TrainResult, fit, learn
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.protocols import Saver
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.steps import Emit, OnBatch, Pulse, bytes_by_place, no_events, no_pulse

USES_FEATURES = True


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
    """See ``protocols.Task``.

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

    The reasons: sampler processes, which draw elsewhere; servers on other machines than the trainers.
    """
    if config.loader == "dgl":
        return None
    if config.loader == "auto" and int(os.environ.get("DGL_NUM_SAMPLER", 0)):
        return None
    if graph.local_partition is None:
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


def run(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
) -> None:
    """Train on this job's graph, evaluate exactly, and report.

    Raises:
        InputError: the ranks do not have the device that was asked for.
    """
    place = settle(device)
    own_part = session.graph.get_partition_book().partid
    partition = load_partition_folder(partition_folder, checksums=False, part=own_part)
    ndata = session.graph.ndata
    data = TrainData(
        session.graph,
        ndata["feat"],
        ndata["label"],
        session.split(ndata["train_mask"]),
        session.split(ndata["val_mask"]),
        place,
    )
    model = place.model(config, data.features.shape[1], partition.manifest["dataset"]["num_classes"])
    session.events.emit("placed", **place.describe())
    session.events.emit("split", train_nodes=len(data.train), val_nodes=len(data.val))
    pipeline = pipeline_for(data.graph, data.features, data.labels, config)
    learn(session, place.wrap(model), node_task(data, config, pipeline), config, checkpoints)
    if pipeline is not None:
        session.events.emit("kept", pipeline=pipeline.describe())
    evaluate(session, model, data, config, partition.node_map, out, pipeline)


def evaluate(
    session: Session,
    model: GraphSAGE,
    data: TrainData,
    config: TrainConfig,
    node_map: np.ndarray,
    out: Path,
    pipeline: Pipeline | None = None,
) -> None:
    """Predict every node over all its neighbours; each trainer does a share of its own machine's part.

    A row is written to the store by a trainer of the machine that holds it. Such a write has happened when the call
    returns; one to another machine has not, and no barrier tells when: a reader could still see zeros.
    """
    import dgl

    graph = session.graph
    n = graph.num_nodes()
    nodes = session.split(torch.ones(n, dtype=torch.bool), even=False)

    def new_store(depth: int, width: int) -> dgl.distributed.DistTensor:
        return dgl.distributed.DistTensor((n, width), torch.float32, name=f"inference-{depth}")

    pulse = Pulse(session.events.emit, "evaluation")
    common = (data.features, nodes, config.eval_batch_size, new_store, session.barrier, pulse, data.place)
    if pipeline is None:
        logits = layerwise_inference(model, graph, *common)
    else:
        logits = layerwise_over_part(model, pipeline.lists, *common, budget=config.cache)
    predictions = torch.cat([logits[part].argmax(1) for part in nodes.split(100_000)])
    right = predictions == data.labels[nodes]
    counts: list[float] = []
    for name in ("val_mask", "test_mask"):
        chosen = graph.ndata[name][nodes].bool()  # DGL returns masks as uint8, which would index instead of select
        counts += [float((right & chosen).sum()), float(chosen.sum())]
    val_right, val_count, test_right, test_count = sum_over_ranks(counts)
    gathered = gather((nodes, predictions))
    if session.rank == 0:
        original = np.empty(n, dtype=np.int64)
        for ids, values in gathered:
            original[node_map[ids.numpy()]] = values.numpy()
        np.save(out / "predictions.npy", original)
        session.events.emit(
            "evaluation",
            val_accuracy=accuracy(val_right, val_count),
            test_accuracy=accuracy(test_right, test_count),
        )
    session.barrier()


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


def check(facts: Mapping[str, Any]) -> None:
    """See ``tasks.TaskModule``."""
    check_one_type(facts, "node")
    if not facts["num_features"]:
        raise InputError(
            f"{facts['name']}: --task node needs node features, and there are none",
            "For a graph without features: --task embedding.",
        )
