"""Mini-batches of nodes of one type or of several, in the same form from a DistGraph and from a plain DGLGraph.

With several types every tensor of ids or rows becomes a dictionary, from type to tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FULL = -1  # fan-out that takes every neighbour


@dataclass
class Batch:
    """One mini-batch.

    Attributes:
        input_nodes: int64 (I,) ids of the nodes whose features the batch needs; of a type, there may be none.
        seeds: int64 (B,) ids of the nodes to compute.
        blocks: message-flow graphs, outermost hop first.
        inputs, labels: rows of the input nodes, and labels of the seeds, where the loader has fetched them.
        background: start (seconds since 1970) and duration in seconds of the phases "sampling" and "pull", for a batch
            that a background thread made.
        bytes_by_place: of the rows that the loader fetched, from this machine and from others.
    """

    input_nodes: Any
    seeds: Any
    blocks: list[Any]
    inputs: Any = None
    labels: Tensor | None = None
    background: dict[str, tuple[float, float]] | None = None
    bytes_by_place: tuple[int, int] | None = None


class BatchLoader:
    """Iterates over sampled mini-batches of seed nodes.

    Args:
        graph: a ``DistGraph`` (also standalone) or a ``DGLGraph``.
        seeds: int64 ids of the nodes to draw batches from, in the graph's own numbering; or by type, type-wise ids.
        fanouts: neighbours to sample per hop (and edge type), outermost hop first; ``FULL`` takes them all.
        batch_size: seeds per batch, all types together; the last batch may be smaller.
        shuffle: draw a new order, from torch's generator, each time the loader is iterated.
        threads: OpenMP threads that sample; None for as many as this process has. With more than one, DGL numbers the
            nodes of a block in the order in which its threads find them, and no two runs are equal.
    """

    def __init__(
        self,
        graph: Any,
        seeds: Tensor | Mapping[str, Tensor],
        fanouts: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool = False,
        threads: int | None = None,
    ) -> None:
        import dgl
        from dgl.dataloading import DistNodeDataLoader, MultiLayerNeighborSampler

        self.graph, self.batch_size, self.shuffle, self.threads = graph, batch_size, shuffle, threads
        self.seeds: Any = seeds
        self.sampler = MultiLayerNeighborSampler(list(fanouts))
        self.total = len(seeds) if isinstance(seeds, Tensor) else sum(map(len, seeds.values()))
        # Made once: with sampler processes, each of them has to be told of a new loader.
        self.distributed = (
            DistNodeDataLoader(graph, seeds, self.sampler, batch_size=batch_size, shuffle=False, drop_last=False)
            if isinstance(graph, dgl.distributed.DistGraph) and self.total
            else None
        )

    def __len__(self) -> int:
        return -(-self.total // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.total == 0:  # DGL's loader cannot draw from nothing
            return
        batches = iter(self._batches())
        while True:
            with sampling_threads(self.threads):
                drawn = next(batches, None)
            if drawn is None:
                return
            yield Batch(*drawn)

    def _batches(self) -> Any:
        """DGL's loader with the order of this epoch.

        DGL's own shuffling permutes the order of the epoch before, so that it would depend on all of them; and the
        loader for plain graphs draws from numpy's generator. Ours depends on torch's generator at this moment alone.
        """
        from dgl.dataloading import DataLoader

        order = torch.randperm(self.total) if self.shuffle else torch.arange(self.total)
        if self.distributed is not None:
            self.distributed.data_idx = order
            return self.distributed
        if isinstance(self.seeds, Tensor):
            return DataLoader(self.graph, self.seeds[order], self.sampler, batch_size=self.batch_size, drop_last=False)
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


@contextlib.contextmanager
def sampling_threads(count: int | None) -> Iterator[None]:
    """Run the body with so many OpenMP threads (DGL and torch share the setting); None changes nothing."""
    from dgl.utils import get_num_threads, set_num_threads

    before = get_num_threads()
    if count is not None:
        set_num_threads(min(count, before))
    try:
        yield
    finally:
        set_num_threads(before)
