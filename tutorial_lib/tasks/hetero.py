"""Classes of the nodes of one type, in a graph with several types of nodes and edges: R-GCN.

Types with features put them in; for each node of the others a row is learned, which in a job lies on the machine that
has the node (``DistEmbedding``). The loop, the checkpoints and the events are those of the other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.typed import TypedBatch, TypedLoader, rows_of, typed_bytes
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.models.rgcn import RGCN
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks.evaluation import accuracy, sum_over_ranks
from tutorial_lib.tasks.typed_inference import typed_inference
from tutorial_lib.tasks.typed_rows import distributed_typed_rows, own_nodes, single_typed_rows
from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.exchange import gather
from tutorial_lib.trainer.loop import EpochResult, TrainResult, fit, learn
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.protocols import Saver
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.steps import Emit, OnBatch, Pulse, no_events, no_pulse

USES_FEATURES = True
ON_CPU = "--task hetero computes on the CPU"


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

    def pull(self, batch: TypedBatch) -> tuple[dict[str, Tensor], Tensor]:
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
class HeteroTask:
    """See ``protocols.Task``.

    Attributes:
        batches, val: of the training and of the validation nodes of this rank.
    """

    data: TypedData
    batches: TypedLoader
    val: TypedLoader
    sparse_optimizers: Sequence[Any]

    def prepare(self, batch: TypedBatch) -> tuple[list[Any], dict[str, Tensor], Tensor]:
        """Blocks, rows of the input nodes, labels of the seeds."""
        with torch.enable_grad():  # learned rows remember what was read of them
            return batch.blocks, *self.data.pull(batch)

    def loss(self, model: nn.Module, prepared: tuple[list[Any], dict[str, Tensor], Tensor]) -> tuple[Tensor, int]:
        """Cross-entropy."""
        blocks, rows, labels = prepared
        return F.cross_entropy(model(blocks, rows), labels), len(labels)

    def traffic(self, batch: TypedBatch, prepared: tuple[list[Any], dict[str, Tensor], Tensor]) -> tuple[int, int]:
        """Bytes of features and learned rows from here and from other machines."""
        return typed_bytes(self.data.graph, batch.input_nodes, prepared[1])

    @torch.no_grad()
    def validate(self, model: nn.Module, on_batch: OnBatch = no_pulse) -> float:
        """Accuracy with sampled neighbours."""
        model.eval()
        correct = count = 0
        for number, batch in enumerate(self.val, start=1):
            rows, labels = self.data.pull(batch)
            correct += int((model(batch.blocks, rows).argmax(1) == labels).sum())
            count += len(labels)
            on_batch(number, len(self.val))
        return accuracy(*sum_over_ranks([correct, count]))


def hetero_task(data: TypedData, config: TrainConfig, optimizer: Any) -> HeteroTask:
    """The task with the batches that ``config`` says."""
    size, threads = config.batch_size, config.sampling_threads
    train = TypedLoader(data.graph, {data.target: data.train}, config.fanouts, size, shuffle=True, threads=threads)
    val = TypedLoader(data.graph, {data.target: data.val}, config.fanouts, size, threads=threads)
    return HeteroTask(data, train, val, [optimizer])


def model_for(graph: Any, target: str, num_classes: int, config: TrainConfig) -> RGCN:
    """A model whose first weights depend on ``config.seed`` alone; ``graph`` may be a ``DistGraph``."""
    sizes = {name: graph.nodes[name].data["feat"].shape[1] for name in featured(graph)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RGCN(
            graph.canonical_etypes,
            target,
            sizes,
            config.embedding_size,
            config.hidden_size,
            num_classes,
            len(config.fanouts),
            config.dropout,
        )


def featured(graph: Any) -> list[str]:
    """Node types that have features."""
    return [name for name in graph.ntypes if "feat" in graph.nodes[name].data]


def learned(model: RGCN) -> list[str]:
    """Node types that the model reads and that have no features."""
    return [name for name in model.types[0] if name not in model.project]


def check(facts: Mapping[str, Any]) -> None:
    """See ``tasks.TaskModule``."""
    if "target" not in facts:
        raise InputError(
            f"{facts['name']}: --task hetero needs a graph with several types of nodes, this one has one",
            "Take --dataset synthetic-academic, or --task node.",
        )


def run(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
) -> None:
    """See ``trainer.run``."""
    place = _on_cpu(settle("cpu" if device == "auto" else device))
    graph = session.graph
    book = graph.get_partition_book()
    partition = load_partition_folder(partition_folder, checksums=False, part=book.partid)
    facts = partition.manifest["dataset"]
    target, papers = facts["target"], graph.nodes[facts["target"]].data
    model = model_for(graph, target, facts["num_classes"], config)
    width, lr = config.embedding_size, config.embedding_learning_rate
    rows, optimizer = distributed_typed_rows(graph, learned(model), partition.node_map, width, lr, config.seed)
    train, val = (_share(graph, papers[f"{name}_mask"], target) for name in ("train", "val"))
    features = {name: graph.nodes[name].data["feat"] for name in model.project}
    data = TypedData(graph, target, features, rows, papers["label"], train, val)
    session.events.emit("placed", **place.describe())
    session.events.emit("split", train_nodes=len(train), val_nodes=len(val))
    checkpoints.embeddings, checkpoints.sparse_optimizers = rows, [optimizer]
    session.barrier()  # nobody reads a row before it has its first value
    learn(session, place.wrap(model), hetero_task(data, config, optimizer), config, checkpoints)
    evaluate(session, model, data, config, partition.node_map[target], out)


def evaluate(
    session: Session, model: RGCN, data: TypedData, config: TrainConfig, node_map: np.ndarray, out: Path
) -> None:
    """Predict every node of the target type over all its neighbours, see ``trainer.evaluate``."""
    import dgl

    graph, target = data.graph, data.target
    nodes = {name: own_nodes(graph, name) for name in graph.ntypes}

    def new_store(depth: int, name: str, width: int) -> Any:
        policy, shape = graph.get_node_partition_policy(name), (graph.num_nodes(name), width)
        return dgl.distributed.DistTensor(shape, torch.float32, name=f"inference-{depth}-{name}", part_policy=policy)

    pulse = Pulse(session.events.emit, "evaluation")
    logits = typed_inference(
        model, graph, data.stores(), nodes, config.eval_batch_size, new_store, session.barrier, pulse
    )
    predictions = rows_of(logits, nodes[target]).argmax(1)
    right = predictions == data.labels[nodes[target]]
    counts: list[float] = []
    for name in ("val_mask", "test_mask"):
        chosen = graph.nodes[target].data[name][nodes[target]].bool()  # DGL returns masks as uint8
        counts += [float((right & chosen).sum()), float(chosen.sum())]
    val_right, val_count, test_right, test_count = sum_over_ranks(counts)
    gathered = gather((nodes[target], predictions))
    if session.rank == 0:
        original = np.empty(graph.num_nodes(target), dtype=np.int64)
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
    """The same in this process on the whole graph; the arguments are those of ``fit``."""
    _on_cpu(place)
    graph, target, papers = dataset.graph, dataset.target, dataset.target_data
    ids = {name: papers[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test")}
    model = model_for(graph, target, dataset.num_classes, config)
    counts = {name: graph.num_nodes(name) for name in learned(model)}
    rows, optimizer = single_typed_rows(counts, config.embedding_size, config.embedding_learning_rate, config.seed)
    features = {name: graph.nodes[name].data["feat"] for name in model.project}
    data = TypedData(graph, target, features, rows, papers["label"], ids["train"], ids["val"])
    if isinstance(saver, Checkpoints):
        saver.embeddings, saver.sparse_optimizers = rows, [optimizer]
    epochs = fit(model, hetero_task(data, config, optimizer), config, on_epoch, emit=emit, saver=saver)
    logits = typed_inference(
        model,
        graph,
        data.stores(),
        {name: graph.nodes(name) for name in graph.ntypes},
        config.eval_batch_size,
        lambda _depth, name, width: torch.empty(graph.num_nodes(name), width),
        on_batch=Pulse(emit, "evaluation"),
    )
    predictions = logits.argmax(1)
    right = predictions == data.labels
    val, test = (accuracy(float(right[ids[name]].sum()), len(ids[name])) for name in ("val", "test"))
    return TrainResult(epochs, val, test, predictions, model)


def _share(graph: Any, mask: Any, target: str) -> Tensor:
    """This trainer's share of the nodes of the target type that a mask selects; shares are nearly equal."""
    import dgl

    return dgl.distributed.node_split(mask, graph.get_partition_book(), ntype=target, force_even=True).long()


def _on_cpu(place: Placement) -> Placement:
    if place.on_gpu:
        raise InputError(ON_CPU, "Take --device cpu.")
    return place
