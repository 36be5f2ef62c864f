"""Mini-batches of graphs with several types: everything is a dictionary, from type to tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.batches.nodes import sampling_threads


@dataclass
class TypedBatch:
    """One mini-batch.

    Attributes:
        input_nodes: by type, int64 type-wise ids of the nodes whose rows the batch needs; may be empty.
        seeds: by type, int64 type-wise ids of the nodes to compute.
        blocks: message-flow graphs with types, outermost hop first.
    """

    input_nodes: dict[str, Tensor]
    seeds: dict[str, Tensor]
    blocks: list[Any]


class TypedLoader:
    """``loaders.BatchLoader`` for graphs with several types.

    Args:
        graph: a ``DistGraph`` or a ``DGLGraph``.
        seeds: by type, int64 type-wise ids.
        fanouts: neighbours to sample per hop *and edge type*, outermost hop first; -1 takes them all.
        batch_size: seeds per batch, all types together; the last batch may be smaller.
        shuffle: draw a new order, from torch's generator, each time the loader is iterated.
        threads: see ``BatchLoader``.
    """

    def __init__(
        self,
        graph: Any,
        seeds: Mapping[str, Tensor],
        fanouts: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool = False,
        threads: int | None = None,
    ) -> None:
        import dgl
        from dgl.dataloading import DistNodeDataLoader, MultiLayerNeighborSampler

        self.graph, self.seeds, self.batch_size, self.shuffle = graph, dict(seeds), batch_size, shuffle
        self.threads = threads
        self.total = sum(map(len, self.seeds.values()))
        self.sampler = MultiLayerNeighborSampler(list(fanouts))
        # Made once: with sampler processes, each of them has to be told of a new loader.
        self.distributed = (
            DistNodeDataLoader(graph, self.seeds, self.sampler, batch_size=batch_size, shuffle=False, drop_last=False)
            if isinstance(graph, dgl.distributed.DistGraph) and self.total
            else None
        )

    def __len__(self) -> int:
        return -(-self.total // self.batch_size)

    def __iter__(self) -> Iterator[TypedBatch]:
        if self.total == 0:  # DGL's loader cannot draw from nothing
            return
        batches = iter(self._batches())
        while True:
            with sampling_threads(self.threads):
                drawn = next(batches, None)
            if drawn is None:
                return
            yield TypedBatch(*drawn)

    def _batches(self) -> Any:
        """DGL's loader with the order of this epoch, which depends on torch's generator at this moment alone."""
        order = torch.randperm(self.total) if self.shuffle else torch.arange(self.total)
        if self.distributed is not None:
            self.distributed.data_idx = order
            return self.distributed
        return (self.sampler.sample_blocks(self.graph, self._take(part)) for part in order.split(self.batch_size))

    def _take(self, positions: Tensor) -> dict[str, Tensor]:
        """Ids at positions of the types one after the other, as DGL's loader counts them."""
        found, first = {}, 0
        for name, ids in self.seeds.items():
            inside = positions[(positions >= first) & (positions < first + len(ids))]
            if len(inside):
                found[name] = ids[inside - first]
            first += len(ids)
        return found


def rows_of(store: Any, ids: Tensor) -> Tensor:
    """``store[ids]``; of no ids, no rows: a DistTensor cannot be asked for them."""
    return store[ids] if len(ids) else torch.empty(0, *store.shape[1:], dtype=store.dtype)


def typed_bytes(graph: Any, nodes: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> tuple[int, int]:
    """``steps.bytes_by_place`` summed over types: bytes of rows from this machine and from others."""
    local = remote = 0
    for name, ids in nodes.items():
        if name not in rows or not len(ids):
            continue
        row_bytes = rows[name].element_size() * rows[name].shape[1]
        own = len(ids)
        if hasattr(graph, "get_partition_book"):
            book = graph.get_partition_book()
            own = int((book.nid2partid(ids, name) == book.partid).sum())
        local, remote = local + own * row_bytes, remote + (len(ids) - own) * row_bytes
    return local, remote
