"""Exact inference over all neighbors, on one graph or on a distributed graph.

Each layer is stored for all nodes. Sampling hop by hop would compute the row of a popular node once for each batch.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.models.graphsage import FirstLayer
from tutorial_lib.sampling.feature_cache import FeatureCache
from tutorial_lib.sampling.neighbor_sampler import NeighborSampler
from tutorial_lib.sampling.nodes import FULL, BatchLoader, rows_of
from tutorial_lib.sampling.pipeline import prefetch
from tutorial_lib.tasks.task import Shard
from tutorial_lib.trainer.comm import barrier
from tutorial_lib.trainer.events import Pulse

# From a shard, a store, IDs and a batch size to the IDs, the block and the input rows of each batch
Source = Callable[[Shard, Any, Any, int], Iterator[tuple[Any, Any, Any]]]


@torch.no_grad()
def layerwise_inference(
    model: Any, source: Source, features: Any, shard: Shard, batch_size: int, *, last: Callable = lambda h: h
) -> Any:
    """Return the outputs of the model for all nodes of the type ``shard.target``, a store of shape (N, outputs).

    Each process computes rows of its own machine, because a write to another machine returns before it has happened,
    and no barrier waits for it. ``last`` is applied to the output of the last layer.
    """
    x, typed, layers = features, isinstance(features, Mapping), len(model.layers)
    pulse = Pulse(shard.emit, "evaluation")
    model.eval()
    for depth, width in enumerate(model.sizes[1:]):
        types = model.types[depth + 1] if typed else [shard.target]
        y = {ntype: shard.new_store(depth, width, ntype) for ntype in types}
        for ntype, store in y.items():
            nodes = shard.own(ntype)
            batches = source(shard, x, {ntype: nodes} if typed else nodes, batch_size)
            for number, (ids, block, rows) in enumerate(batches, start=1):
                h = model.layer(depth, block, rows)
                ids, h = (ids[ntype], h[ntype]) if typed else (ids, h)
                store[ids] = (last(h) if depth == layers - 1 else h).cpu()
                pulse(number, -(-len(nodes) // batch_size), layer=depth, layers=layers)
        barrier()
        x = y if typed else y[shard.target]
    return y[shard.target]


def from_graph(shard: Shard, x: Any, ids: Any, size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield batches of DGL's loader. The store, the IDs and the rows are dictionaries in a graph with several types."""
    for _step, batch in BatchLoader(shard.graph, ids, [FULL], size).batches(0):
        nodes: Any = batch.input_nodes
        rows: Any = {t: rows_of(x[t], nodes[t]) for t in x} if isinstance(x, Mapping) else x[nodes]
        (block,), rows = shard.place.take(batch.blocks, rows)
        yield batch.seeds, block, rows


def from_adjacency(sampler: NeighborSampler, budget: int) -> Source:
    """Return a source of batches from the adjacency of this machine, with ``budget`` bytes for remote rows.

    DGL's loader would send adjacency over the network, and every batch would fetch its own remote rows.
    """

    def read(store: Any, parts: tuple[Tensor, ...]) -> Generator[tuple[Tensor, Tensor, Tensor], None, None]:
        cache = FeatureCache(store, sampler.book, budget)
        for ids in parts:
            indptr, sources = sampler.sample(ids, FULL)
            slots = cache.slots(torch.cat([ids.to(sampler.dtype), sources]))
            yield ids, cache.read(slots[: len(ids)]), cache.mean(slots[len(ids) :], indptr)

    def source(shard: Shard, x: Any, ids: Tensor, size: int) -> Iterator[tuple[Tensor, None, FirstLayer]]:
        parts = ids.split(size) if len(ids) else ()
        for part, *rows in prefetch(read(x, parts), 1):
            yield part, None, FirstLayer(*shard.place.take([], *rows)[1:])

    return source
