"""Classes of nodes of a graph without features: a row for each node is learned, with GraphSAGE on top.

The rows take the place of features: a job keeps them in a ``DistEmbedding``, so that each machine holds those of its
own part, with the state of their optimiser. Batches, loss and evaluation are those of node classification.

Without features, accuracy says how well the *place* of a node in the graph tells its class. There is no row for a node
that was not in the graph while training; the model cannot be used for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.batches.nodes import Batch
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.partition import load_partition_folder
from tutorial_lib.tasks import check_one_type
from tutorial_lib.tasks.learned_rows import distributed_rows, memory_of, shared_memory, single_rows
from tutorial_lib.tasks.node import NodeTask, TrainData, evaluate, evaluate_single, node_task
from tutorial_lib.trainer.checkpoint import Checkpoints
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.loop import EpochResult, TrainResult, fit, learn
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.protocols import Saver
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.steps import Emit, no_events

USES_FEATURES = False


@dataclass
class EmbeddingTask(NodeTask):
    """Node classification whose inputs are learned, see ``protocols.Task``.

    Attributes:
        rows: ``DistEmbedding`` or ``NodeEmbedding``; the ``features`` of ``data`` are its values, to evaluate with.
        dropout: share of whole rows that a step does without. With all of them, the row of a training node soon spells
            out its own label, and nothing is left to learn for its neighbours.
    """

    rows: Any = None
    dropout: float = 0.5

    def prepare(self, batch: Batch) -> tuple[Any, Tensor, Tensor]:
        """Blocks, rows of the input nodes, labels of the seeds.

        Rows are read here and not ahead of time: the step before this one may have changed them.
        """
        with torch.enable_grad():
            rows = self.rows(batch.input_nodes)  # a leaf on the CPU: its gradient goes where the row is kept
            kept = rows * F.dropout(torch.ones(len(rows), 1), self.dropout)
        blocks, labels = self.data.place.take(batch.blocks, self.data.labels[batch.seeds].long())
        return blocks, kept.to(self.data.place.device), labels


def embedding_task(data: TrainData, config: TrainConfig, rows: Any, optimizer: Any) -> EmbeddingTask:
    """The task with the batches that ``config`` says."""
    node = node_task(data, config)
    return EmbeddingTask(data, node.batches, node.val, [optimizer], rows, config.dropout)


def check(facts: Mapping[str, Any]) -> None:
    """See ``tasks.TaskModule``. A graph with features will do: they are not read."""
    check_one_type(facts, "embedding")
    if not facts["num_classes"]:
        raise InputError(f"{facts['name']}: --task embedding needs labels, and there are none")


def run(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
) -> None:
    """See ``trainer.run``; besides, an ``embedding`` event of each machine tells what it holds."""
    place = settle(device)
    own_part = session.graph.get_partition_book().partid
    partition = load_partition_folder(partition_folder, checksums=False, part=own_part)
    ndata = session.graph.ndata
    width, lr = config.embedding_size, config.embedding_learning_rate
    rows, optimizer = distributed_rows(session.graph, partition.node_map, width, lr, config.seed)
    train, val = session.split(ndata["train_mask"]), session.split(ndata["val_mask"])
    data = TrainData(session.graph, rows.weight, ndata["label"], train, val, place)
    model = place.model(config, width, partition.manifest["dataset"]["num_classes"])
    session.events.emit("placed", **place.describe())
    session.events.emit("split", train_nodes=len(train), val_nodes=len(val))
    checkpoints.embeddings, checkpoints.sparse_optimizers = {"node": rows}, [optimizer]
    session.barrier()  # nobody reads a row before it has its first value
    held = {**memory_of(rows, optimizer), "shared_memory": shared_memory()}
    session.events.emit("embedding", machine=session.machine, **held)
    learn(session, place.wrap(model), embedding_task(data, config, rows, optimizer), config, checkpoints)
    evaluate(session, model, data, config, partition.node_map, out)


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    on_epoch: Callable[[EpochResult], None] = lambda _result: None,
    *,
    emit: Emit = no_events,
    saver: Saver | None = None,
    place: Placement = CPU,
) -> TrainResult:
    """The same in this process on the whole graph, with a ``NodeEmbedding``; the arguments are those of ``fit``."""
    graph = dataset.graph
    ids = {name: graph.ndata[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test")}
    width = config.embedding_size
    rows, optimizer = single_rows(graph.num_nodes(), width, config.embedding_learning_rate, config.seed)
    data = TrainData(graph, rows.weight, graph.ndata["label"], ids["train"], ids["val"], place)
    model = place.model(config, width, dataset.num_classes)
    if isinstance(saver, Checkpoints):
        saver.embeddings, saver.sparse_optimizers = {"node": rows}, [optimizer]
    epochs = fit(model, embedding_task(data, config, rows, optimizer), config, on_epoch, emit=emit, saver=saver)
    return evaluate_single(model, data, config, ids, epochs, emit)
