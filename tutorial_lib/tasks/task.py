"""What a task is, and the two ways in which every task is trained: on the ranks of a job, and in one process.

A task is written once, against a share of a graph: all of it (``Whole``), or what a rank has (``RankShare``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.batches.nodes import rows_of
from tutorial_lib.compat.heap import give_back_freed_memory
from tutorial_lib.data.base import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.partition import Partition, load_partition_folder
from tutorial_lib.tasks import task_named
from tutorial_lib.trainer.checkpoint import Checkpoints, export_weights
from tutorial_lib.trainer.comm import accuracy, sum_over_ranks
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import Emit, no_events, span
from tutorial_lib.trainer.loop import Task, TrainResult, fit
from tutorial_lib.trainer.placement import CPU, Placement, settle
from tutorial_lib.trainer.session import Session
from tutorial_lib.trainer.stopping import EpochStopped

ROWS = 100_000  # looked at, at a time


class Whole:
    """What a process that is alone has. ``RankShare`` has the same names.

    Attributes:
        graph: ``DGLGraph``; of a rank, ``DistGraph``.
        target: type of the nodes with labels and masks; of a graph with one type, that one.
        data: by name, the data of those nodes: tensors; of a rank, ``DistTensor``s.
        num_classes: of those nodes.
        place: where the model computes.
        machine: where this rank is; None where there is no job.
        emit: takes events.
    """

    rank, machine = 0, None

    def __init__(self, dataset: Dataset, place: Placement = CPU, emit: Emit = no_events) -> None:
        dataset.make_dense()
        self.dataset, self.place, self.emit = dataset, place, emit
        self.graph, self.target, self.num_classes = dataset.graph, dataset.target, dataset.num_classes
        self.data = dataset.target_data

    def nodes(self, mask: str, *, even: bool = True) -> Tensor:  # noqa: ARG002
        """int64 ids of this process's share of what a mask of ``data`` selects; ``even`` as in ``Session.split``."""
        return self.data[mask].nonzero().flatten()

    def own(self, ntype: str | None = None) -> Tensor:
        """int64 ids of the nodes of a type (None: ``target``) that this process computes: their rows are here."""
        return self.graph.nodes(ntype or self.target)

    def new_store(self, depth: int, width: int, ntype: str | None = None) -> Tensor:  # noqa: ARG002
        """float32 (N of this type, width), for the output of a layer; every process asks for the same ones."""
        return torch.empty(self.graph.num_nodes(ntype or self.target), width)

    def numbers(self, ntype: str | None = None) -> np.ndarray:
        """int64 (N of this type,): the data set's number of each node."""
        return np.arange(self.graph.num_nodes(ntype or self.target))

    def barrier(self) -> None:
        """Wait for all processes."""


class RankShare:
    """What a rank of a job has, under the names that ``Whole`` explains."""

    def __init__(self, session: Session, partition: Partition, place: Placement) -> None:
        self.session, self.partition, self.place = session, partition, place
        self.graph, self.rank = session.graph, session.rank
        self.machine, self.emit, self.barrier = session.machine, session.events.emit, session.barrier
        facts = partition.manifest["dataset"]
        self.target: str = facts["target"] if "target" in facts else self.graph.ntypes[0]
        self.num_classes = facts["num_classes"]
        self.data = self.graph.nodes[self.target].data if "target" in facts else self.graph.ndata

    def nodes(self, mask: str, *, even: bool = True) -> Tensor:
        return self.session.split(self.data[mask], even=even, ntype=self.target)

    def own(self, ntype: str | None = None) -> Tensor:
        everyone = torch.ones(self.graph.num_nodes(ntype or self.target), dtype=torch.bool)
        return self.session.split(everyone, even=False, ntype=ntype or self.target)

    def new_store(self, depth: int, width: int, ntype: str | None = None) -> Any:
        import dgl

        ntype = ntype or self.target
        policy, shape = self.graph.get_node_partition_policy(ntype), (self.graph.num_nodes(ntype), width)
        return dgl.distributed.DistTensor(shape, torch.float32, name=f"inference-{depth}-{ntype}", part_policy=policy)

    def numbers(self, ntype: str | None = None) -> np.ndarray:
        node_map = self.partition.node_map
        return node_map[ntype or self.target] if isinstance(node_map, Mapping) else node_map


Share = Whole | RankShare


class TaskSpec(ABC):
    """What is learned. A module of this folder has one as its ``TASK``; docs/architecture.md shows how to add one.

    Attributes:
        name: of the module, as in ``--task``.
        uses_features: whether the nodes must have ``feat``; False: the data set is loaded without.
        score: what ``evaluate`` and ``Task.validate`` give.
        on_gpu: whether its model can compute on a GPU.
    """

    name: str
    uses_features = True
    score = "accuracy"
    on_gpu = True

    def check(self, facts: Mapping[str, Any]) -> None:
        """Whether a data set suits the task, before anything is started: nodes of one type, and their features.

        Args:
            facts: the ``dataset`` of a partition's manifest, ``partition.dataset_description`` makes it.

        Raises:
            InputError: it does not; the message says what is missing.
        """
        if "target" in facts:
            raise InputError(
                f"{facts['name']}: --task {self.name} needs a graph with one type of nodes, this one has several",
                "Take --task hetero, or another data set.",
            )
        if self.uses_features and not facts["num_features"]:
            raise InputError(
                f"{facts['name']}: --task {self.name} needs node features, and there are none",
                "For a graph without features: --task embedding.",
            )

    @abstractmethod
    def begin(self, share: Share, config: TrainConfig) -> tuple[nn.Module, Task]:
        """The model, with weights that depend on ``config.seed`` alone, and what the loop needs to teach it.

        Every rank calls it. Of a model, ``models`` has two.
        """

    @abstractmethod
    def evaluate(self, share: Share, model: nn.Module, task: Any, config: TrainConfig) -> TrainResult:
        """Exact scores over all ranks; every rank calls it, with what ``begin`` gave."""


def train_in_job(
    session: Session,
    config: TrainConfig,
    partition_folder: Path,
    out: Path,
    checkpoints: Checkpoints,
    device: str = "cpu",
    *,
    spec: TaskSpec | None = None,
) -> None:
    """What each rank of a job does: learn, evaluate exactly, report.

    Args:
        out: run folder; rank 0 writes what the task predicts.
        spec: the task; None: that of ``config``.

    Raises:
        InputError: the ranks do not have the device that was asked for.
    """
    spec, emit, first = spec or task_named(config.task), session.events.emit, session.rank == 0
    emit_once = emit if first else no_events
    place = _suits(spec, settle("cpu" if device == "auto" and not spec.on_gpu else device))
    own_part = session.graph.get_partition_book().partid
    share = RankShare(session, load_partition_folder(partition_folder, checksums=False, part=own_part), place)
    with span(emit, "preparing"):
        model, task = spec.begin(share, config)
    emit("placed", **place.describe())
    emit("split", **task.split)
    checkpoints.emit = emit_once
    try:
        fit(place.wrap(model), task, config, emit=emit, saver=checkpoints, score=spec.score)
    except EpochStopped:  # saved; a later start goes on from there
        return
    if first:
        export_weights(model, config.to_dict(), checkpoints.folder)
    emit_once("evaluating")
    give_back_freed_memory()
    with span(emit, "evaluation"):
        result = spec.evaluate(share, model, task, config)
    result.score = spec.score
    if first:
        result.save(out)
    emit_once("evaluation", **result.summary())
    session.barrier()


def train_single(
    dataset: Dataset,
    config: TrainConfig,
    *,
    emit: Emit = no_events,
    saver: Checkpoints | None = None,
    place: Placement = CPU,
    spec: TaskSpec | None = None,
) -> TrainResult:
    """The same in this process, on the whole graph: what a job must agree with. Arguments as ``loop.fit``."""
    spec = spec or task_named(config.task)
    share = Whole(dataset, _suits(spec, place), emit)
    model, task = spec.begin(share, config)
    epochs = fit(model, task, config, emit=emit, saver=saver, score=spec.score)
    with span(emit, "evaluation"):
        result = spec.evaluate(share, model, task, config)
    result.score, result.epochs, result.model = spec.score, epochs, model
    return result


def _suits(spec: TaskSpec, place: Placement) -> Placement:
    if place.on_gpu and not spec.on_gpu:
        raise InputError(f"--task {spec.name} computes on the CPU", "Take --device cpu.")
    return place


def shares_right(share: Share, nodes: Tensor, right: Tensor) -> tuple[float, float]:
    """Of the validation and of the test nodes of all ranks, the share that is right: counts are summed, not means.

    Args:
        nodes: int64 (M,), those of this rank; right: bool (M,).
    """
    counts: list[float] = []
    for mask in ("val_mask", "test_mask"):
        chosen = rows_of(share.data[mask], nodes).bool()  # DGL returns masks as uint8, which would index, not select
        counts += [float((right & chosen).sum()), float(chosen.sum())]
    val_right, val_count, test_right, test_count = sum_over_ranks(counts)
    return accuracy(val_right, val_count), accuracy(test_right, test_count)
