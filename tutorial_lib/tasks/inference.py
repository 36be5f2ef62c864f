"""Exact inference layer by layer over all neighbors, on one graph or on a distributed graph.

Sampling hop by hop would compute the hidden row of a popular node once for each batch that needs it. Here each layer is
computed for all nodes and stored, and the next layer reads it. A ``Source`` yields the neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.batches.background import ahead
from tutorial_lib.batches.neighbours import NeighbourLists
from tutorial_lib.batches.nodes import FULL, BatchLoader, rows_of
from tutorial_lib.batches.table import RowTable
from tutorial_lib.models.sage import CscBlock
from tutorial_lib.trainer.events import OnBatch, no_events
from tutorial_lib.trainer.placement import CPU, Placement

ONE = "_N"  # DGL's name for the only type of nodes
# From stores by type, a type and int64 IDs of this type to the IDs, block and input rows of each batch.
Source = Callable[[Mapping[str, Any], str, Tensor], Iterator[tuple[Tensor, Any, Any]]]


@torch.no_grad()
def layerwise_inference(
    model: Any,
    graph: Any,
    features: Any,
    nodes: Any,
    batch_size: int,
    new_store: Callable[..., Any],
    wait_for_all: Callable[[], Any] = lambda: None,
    on_batch: OnBatch = no_events,
    place: Placement = CPU,
    *,
    last: Callable[[Tensor], Tensor] = lambda h: h,
) -> Any:
    """Return the outputs of the model for all nodes, a store of shape (N, outputs).

    Args:
        model: has ``layers``, ``sizes`` and ``layer(depth, block, rows)``. With several types of nodes it also has
            ``types``, and the store of its target is returned.
        graph: ``DGLGraph`` or ``DistGraph``, or a ``Source``.
        features: float32 of shape (N, in_size), a tensor or a ``DistTensor``. With several types of nodes, ``features``
            and ``nodes`` are dictionaries.
        nodes: int64 IDs that this process computes. All processes together compute all N nodes. The rows of a
            ``DistTensor`` must be on this machine, because a write to another machine returns before it has happened.
        new_store: ``new_store(depth, width)``, or ``new_store(depth, width, type)``, creates the store of a layer's
            output. Every process creates the same stores in the same order.
        wait_for_all: barrier after each layer, because the next layer reads rows of other processes.
        on_batch: receives the number of finished batches, the number of batches, ``layer`` (from 0) and ``layers``.
        place: device of the model. Features and stores stay on the CPU.
        last: is applied to the output of the last layer.
    """
    typed = isinstance(nodes, Mapping)

    def from_graph(x: Mapping[str, Any], name: str, ids: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        for batch in BatchLoader(graph, {name: ids} if typed else ids, [FULL], batch_size):
            if typed:
                rows = {kind: rows_of(store, batch.input_nodes[kind]) for kind, store in x.items()}
                yield batch.seeds[name], batch.blocks[0], rows
            else:
                (block,), rows = place.take(batch.blocks, x[name][batch.input_nodes])
                yield batch.seeds, block, rows

    source: Source = graph if callable(graph) else from_graph
    model.eval()
    layers, (x, nodes) = len(model.layers), (features, nodes) if typed else ({ONE: features}, {ONE: nodes})
    for depth, width in enumerate(model.sizes[1:]):
        types = model.types[depth + 1] if typed else [ONE]
        y = {name: new_store(depth, width, name) if typed else new_store(depth, width) for name in types}
        for name, store in y.items():
            count = -(-len(nodes[name]) // batch_size)
            for number, (ids, block, rows) in enumerate(source(x, name, nodes[name]), start=1):
                h = model.layer(depth, block, rows)
                h = h[name] if typed else h
                store[ids] = (last(h) if depth == layers - 1 else h).cpu()
                on_batch(number, count, layer=depth, layers=layers)
        wait_for_all()
        x = y
    return x[types[-1]]


def layerwise_over_part(
    model: Any,
    lists: NeighbourLists,
    features: Any,
    nodes: Any,
    batch_size: int,
    *stores: Any,
    budget: int = 256_000_000,
) -> Any:
    """Run ``layerwise_inference`` on the adjacency of this machine's part, which no server is asked for.

    DGL's loader would send adjacency over the network, and every batch would fetch its own remote rows. Here remote
    rows stay in a cache for the following batches.

    Args:
        lists: adjacency of the graph of ``features``.
        nodes: int64 IDs of nodes of this machine.
        stores: ``new_store``, ``wait_for_all``, ``on_batch`` and ``place`` of ``layerwise_inference``.
        budget: bytes for rows of other machines.
    """
    place: Placement = stores[3] if len(stores) > 3 else CPU

    def batches(x: Any, parts: tuple[Tensor, ...]) -> Generator[tuple[Tensor, CscBlock, Tensor], None, None]:
        cache = RowTable(x, lists.book, budget)
        for ids in parts:
            edges = lists.whole(ids)
            sources, indices = lists.compact(edges, ids.to(lists.dtype))
            yield ids, CscBlock(edges.indptr, indices), torch.index_select(cache.rows, 0, cache.slots(sources))

    def source(x: Mapping[str, Any], name: str, ids: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        parts = ids.split(batch_size) if len(ids) else ()
        for part, block, rows in ahead(lambda: batches(x[name], parts), 1, "rows for the evaluation"):
            (placed,), rows = place.take([block], rows)
            yield part, placed, rows

    return layerwise_inference(model, source, features, nodes, batch_size, *stores)
