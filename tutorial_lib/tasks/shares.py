"""What one process has of a graph: all of it, or a rank's share. A task is written once, against either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.data.base import Dataset
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.session import Session


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
