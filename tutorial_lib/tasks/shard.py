"""The part of a graph that one process computes, with the same interface for a single process and a rank of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.data.base import Dataset
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.events import Emit, no_events
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.session import Session

EDGES = 1_000_000  # edges whose side of the split is computed at a time
Side = Callable[[Tensor, Tensor], Tensor]  # from source and destination nodes to a number per edge


class LocalShard:
    """The whole graph, for a process that trains alone.

    Attributes:
        graph: ``DGLGraph``, or ``DistGraph`` in a job.
        target: type of the nodes with labels and masks.
        data: node data of this type by name, tensors or ``DistTensor``s.
        num_classes: number of classes, 0 for a graph without labels.
        place: device of the model.
        emit: takes events.
        rank, world_size: this process among the processes that share the graph.
    """

    rank, world_size, distributed = 0, 1, False

    def __init__(self, dataset: Dataset, place: Placement = CPU, emit: Emit = no_events) -> None:
        self.place, self.emit = place, emit
        self.graph, self.target, self.num_classes = dataset.graph, dataset.target, dataset.num_classes
        self.data = dataset.target_data

    def nodes(self, mask: str, *, even: bool = True) -> Tensor:  # noqa: ARG002
        """Return the int64 IDs of the nodes of a mask that this process handles, see ``Session.split`` for ``even``."""
        return self.data[mask].nonzero().flatten()

    def own(self, ntype: str | None = None) -> Tensor:
        """Return the int64 IDs of the nodes of a type (default ``target``) whose rows this process computes."""
        return self.graph.nodes(ntype or self.target)

    def edges(self, side: Side, sides: int) -> list[Tensor]:
        """Return the int64 IDs of the edges of each side that this process handles.

        Args:
            side: computes the side of each edge, a number below ``sides``.
        """
        found = side(*self.graph.edges(order="eid"))
        return [(found == number).nonzero().flatten() for number in range(sides)]

    def new_store(self, depth: int, width: int, ntype: str | None = None) -> Tensor:  # noqa: ARG002
        """Return an uninitialized float32 store of shape (N, width). Every process calls this in the same order."""
        return torch.empty(self.graph.num_nodes(ntype or self.target), width)

    def original_nodes(self, ntype: str | None = None) -> np.ndarray:
        """Return the ID in the data set of each node of a type, int64 of shape (N,)."""
        return np.arange(self.graph.num_nodes(ntype or self.target))

    def original_edges(self) -> np.ndarray:
        """Return the ID in the data set of each edge, int64 of shape (E,)."""
        return np.arange(self.graph.num_edges())

    def barrier(self) -> None:
        """Wait for all processes."""


class DistShard:
    """The part of a ``DistGraph`` that one rank computes, with the interface of ``LocalShard``."""

    distributed = True

    def __init__(self, session: Session, partition: Partition, place: Placement = CPU) -> None:
        self.session, self.partition, self.place = session, partition, place
        self.graph, self.rank, self.world_size = session.graph, session.rank, session.world_size
        self.emit, self.barrier = session.events.emit, session.barrier
        facts = partition.manifest["dataset"]
        self.target: str = facts["target"] if "target" in facts else self.graph.ntypes[0]
        self.num_classes = facts["num_classes"]
        self.data = self.graph.nodes[self.target].data if "target" in facts else self.graph.ndata

    def nodes(self, mask: str, *, even: bool = True) -> Tensor:
        return self.session.split(self.data[mask], even=even, ntype=self.target)

    def own(self, ntype: str | None = None) -> Tensor:
        everyone = torch.ones(self.graph.num_nodes(ntype or self.target), dtype=torch.bool)
        return self.session.split(everyone, even=False, ntype=ntype or self.target)

    def edges(self, side: Side, sides: int) -> list[Tensor]:
        # The first trainer of a machine marks the edges of its own part in one mask for each side, which needs no
        # other machine. The ranks share the edges of side 0 (training) evenly. Other edges stay on their machine.
        from dgl.distributed import DistTensor, edge_split

        graph, book = self.graph, self.graph.get_partition_book()
        policy = graph.get_edge_partition_policy("_E")
        masks = [DistTensor((graph.num_edges(),), torch.uint8, f"side-{k}", part_policy=policy) for k in range(sides)]
        if self.rank % (self.world_size // book.num_partitions()) == 0:
            for ids in book.partid2eids(book.partid).split(EDGES):
                found = side(*graph.find_edges(ids))
                for number, mask in enumerate(masks):
                    mask[ids] = (found == number).to(torch.uint8)
        self.barrier()
        return [edge_split(mask, book, force_even=number == 0).long() for number, mask in enumerate(masks)]

    def new_store(self, depth: int, width: int, ntype: str | None = None) -> Any:
        from dgl.distributed import DistTensor

        ntype = ntype or self.target
        policy, shape = self.graph.get_node_partition_policy(ntype), (self.graph.num_nodes(ntype), width)
        return DistTensor(shape, torch.float32, name=f"inference-{depth}-{ntype}", part_policy=policy)

    def original_nodes(self, ntype: str | None = None) -> np.ndarray:
        node_map = self.partition.node_map
        return node_map[ntype or self.target] if isinstance(node_map, Mapping) else node_map

    def original_edges(self) -> np.ndarray:
        return self.partition.edge_map


Shard = LocalShard | DistShard
