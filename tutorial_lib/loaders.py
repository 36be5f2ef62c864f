"""Mini-batches for node classification, in the same form from a DistGraph and from a plain DGLGraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

FULL = -1  # fan-out that takes every neighbour


@dataclass
class Batch:
    """One mini-batch.

    Attributes:
        input_nodes: int64 (I,) ids of the nodes whose features the batch needs.
        seeds: int64 (B,) ids of the nodes to classify.
        blocks: message-flow graphs, outermost hop first.
    """

    input_nodes: Tensor
    seeds: Tensor
    blocks: list[Any]


class BatchLoader:
    """Iterates over sampled mini-batches of seed nodes.

    Args:
        graph: a ``DistGraph`` (also standalone) or a ``DGLGraph``.
        seeds: int64 ids of the nodes to draw batches from, in the graph's own numbering.
        fanouts: neighbours to sample per hop, outermost hop first; ``FULL`` takes them all.
        batch_size: seeds per batch; the last batch may be smaller.
        shuffle: draw a new order in each epoch.
    """

    def __init__(
        self, graph: Any, seeds: Tensor, fanouts: Sequence[int], batch_size: int, *, shuffle: bool = False
    ) -> None:
        import dgl
        from dgl.dataloading import DataLoader, DistNodeDataLoader, MultiLayerNeighborSampler

        sampler = MultiLayerNeighborSampler(list(fanouts))
        loader = DistNodeDataLoader if isinstance(graph, dgl.distributed.DistGraph) else DataLoader
        self.batches = loader(graph, seeds, sampler, batch_size=batch_size, shuffle=shuffle, drop_last=False)
        self.count = -(-len(seeds) // batch_size)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        if self.count == 0:  # DGL's loader cannot draw from nothing
            return
        for input_nodes, seeds, blocks in self.batches:
            yield Batch(input_nodes, seeds, blocks)
