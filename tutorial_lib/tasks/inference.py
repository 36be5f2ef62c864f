"""Exact inference layer by layer over all neighbors, on one graph or on a distributed graph.

Sampling hop by hop would compute the hidden row of a popular node once for each batch that needs it. Here each layer is
computed for all nodes and stored, and the next layer reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbor_sampler import NeighborSampler
from tutorial_lib.sampling.nodes import FULL, BatchLoader, rows_of
from tutorial_lib.sampling.prefetch import prefetch
from tutorial_lib.tasks.shard import Shard
from tutorial_lib.trainer.events import Pulse

# From stores by type, a type, int64 IDs of this type and a batch size to the IDs, block and input rows of each batch.
Source = Callable[[Mapping[str, Any], str, Tensor, int], Iterator[tuple[Tensor, Any, Any]]]


@torch.no_grad()
def layerwise_inference(
    model: Any,
    source: Source,
    features: Any,
    shard: Shard,
    batch_size: int,
    *,
    last: Callable[[Tensor], Tensor] = lambda h: h,
) -> Any:
    """Return the outputs of the model for all nodes of the type ``shard.target``, a store of shape (N, outputs).

    Each process computes the nodes ``shard.own()`` and waits for the others after each layer. The rows of these nodes
    must be on its own machine, because a write to another machine returns before it has happened, and no barrier waits
    for it.

    Args:
        model: has ``layers``, ``sizes`` and ``layer(depth, block, rows)``. With several types it also has ``types``.
        source: yields the batches with all neighbors, see ``from_graph`` and ``from_adjacency``.
        features: float32 of shape (N, in_size), a tensor or a ``DistTensor``. A dictionary for several types of nodes.
        last: is applied to the output of the last layer.
    """
    typed, layers, pulse = isinstance(features, Mapping), len(model.layers), Pulse(shard.emit, "evaluation")
    x = features if typed else {shard.target: features}
    model.eval()
    for depth, width in enumerate(model.sizes[1:]):
        y = {ntype: shard.new_store(depth, width, ntype) for ntype in (model.types[depth + 1] if typed else x)}
        for ntype, store in y.items():
            nodes = shard.own(ntype)
            for number, (ids, block, rows) in enumerate(source(x, ntype, nodes, batch_size), start=1):
                h = model.layer(depth, block, rows)
                h = h[ntype] if typed else h
                store[ids] = (last(h) if depth == layers - 1 else h).cpu()
                pulse(number, -(-len(nodes) // batch_size), layer=depth, layers=layers)
        shard.barrier()
        x = y
    return x[shard.target]


def from_graph(shard: Shard, *, typed: bool = False) -> Source:
    """Return a source of batches from DGL's loader. With ``typed``, IDs and rows of a batch are dictionaries."""

    def source(x: Mapping[str, Any], ntype: str, ids: Tensor, size: int) -> Iterator[tuple[Tensor, Any, Any]]:
        for _step, batch in BatchLoader(shard.graph, {ntype: ids} if typed else ids, [FULL], size).batches(0):
            if typed:
                rows = {kind: rows_of(store, batch.input_nodes[kind]) for kind, store in x.items()}
                yield batch.seeds[ntype], batch.blocks[0], rows
            else:
                (block,), rows = shard.place.take(batch.blocks, x[ntype][batch.input_nodes])
                yield batch.seeds, block, rows

    return source


def from_adjacency(shard: Shard, sampler: NeighborSampler, budget: int) -> Source:
    """Return a source of batches from the adjacency of this machine's part, which no server is asked for.

    DGL's loader would send adjacency over the network, and every batch would fetch its own remote rows. Here ``budget``
    bytes of remote rows stay in a cache for the following batches, and the means are computed where the rows are read.
    """

    def batches(store: Any, parts: tuple[Tensor, ...]) -> Generator[tuple[Tensor, FirstLayer], None, None]:
        cache = FeatureCache(store, sampler.book, budget)
        for ids in parts:
            edges = sampler.sample(ids, FULL)
            slots = cache.slots(torch.cat([ids.to(sampler.dtype), edges.sources]))
            own, mean = cache.read(slots[: len(ids)]), cache.mean(slots[len(ids) :], edges.indptr)
            yield ids, FirstLayer(own, mean)

    def source(x: Mapping[str, Any], ntype: str, ids: Tensor, size: int) -> Iterator[tuple[Tensor, Any, Any]]:
        parts = ids.split(size) if len(ids) else ()
        for part, inputs in prefetch(lambda: batches(x[ntype], parts), 1, "rows for the evaluation"):
            _blocks, own, mean = shard.place.take([], inputs.own, inputs.mean)
            yield part, None, FirstLayer(own, mean)

    return source
