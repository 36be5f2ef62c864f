"""Exact inference: layer by layer over all neighbours, on one graph or on a distributed one.

Sampling hop by hop would compute the hidden vector of a popular node once for each batch that it is in. Here a layer is
computed for all nodes, stored, and read by the next one. A ``Source`` says where the neighbours come from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutorial_lib.batches.background import ahead
from tutorial_lib.batches.neighbours import NeighbourLists
from tutorial_lib.batches.nodes import FULL, BatchLoader, rows_of
from tutorial_lib.batches.table import RowTable
from tutorial_lib.models.sage import FirstLayer, NarrowStores
from tutorial_lib.trainer.events import OnBatch, no_events
from tutorial_lib.trainer.placement import CPU, Placement

ONE = "_N"  # DGL's name for the only type of nodes
# From stores by type, a type and int64 ids of it: ids, block and input rows of one batch after the other.
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
    """Logits of all nodes, computed for all nodes one layer at a time, so that nothing is computed twice.

    Args:
        model: has ``layers``, ``sizes`` and ``layer(depth, block, rows)``; with several types of nodes also ``types``.
        graph: ``DGLGraph`` or ``DistGraph``, or a ``Source`` of batches.
        features: float32 (N, in_size), a tensor or a ``DistTensor``; or by type, and then ``nodes`` as well.
        nodes: int64 ids this process computes; those of all processes together must be all N. Rows of a ``DistTensor``
            must lie on this machine: a write to another one returns before it has arrived.
        new_store: ``new_store(depth, width)``, with several types ``new_store(depth, width, type)``, makes the float32
            (N, width) store of a layer's output; every process asks for the same ones in the same order.
        wait_for_all: barrier between layers; the next layer reads what others wrote.
        on_batch: called after each batch with batches done and batches of the layer; ``layer=`` (from 0), ``layers=``.
        place: where the model is; features and stores stay on the CPU.
        last: what becomes of the rows of the last layer.

    Returns:
        The store of the last layer, (N, number of classes); with several types, that of the model's target.
    """
    typed = isinstance(nodes, Mapping)

    def from_graph(x: Mapping[str, Any], name: str, ids: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        for _step, batch in BatchLoader(graph, {name: ids} if typed else ids, [FULL], batch_size).batches(0):
            if typed:
                rows = {kind: rows_of(store, batch.input_nodes[kind]) for kind, store in x.items()}
                yield batch.seeds[name], batch.blocks[0], rows
            else:
                (block,), rows = place.take(batch.blocks, x[name][batch.input_nodes])
                yield batch.seeds, block, rows

    source: Any = graph if callable(graph) else from_graph
    model.eval()
    layers, (x, nodes) = len(model.layers), (features, nodes) if typed else ({ONE: features}, {ONE: nodes})
    for depth, width in enumerate(model.sizes[1:]):
        types = model.types[depth + 1] if typed else [ONE]
        y = {name: new_store(depth, width, name) if typed else new_store(depth, width) for name in types}
        for name, store in y.items():
            of = -(-len(nodes[name]) // batch_size)
            for number, (ids, block, rows) in enumerate(source(x, name, nodes[name]), start=1):
                h = model.layer(depth, block, rows)
                h = h[name] if typed else h
                store[ids] = (last(h) if depth == layers - 1 else h).cpu()
                on_batch(number, of, layer=depth, layers=layers)
        wait_for_all()
        x = y
    return x[types[-1]]


def layerwise_over_part(
    model: nn.Module,
    lists: NeighbourLists,
    features: Any,
    nodes: Any,
    batch_size: int,
    new_store: Callable[[int, int], Any],
    wait_for_all: Callable[[], None],
    on_batch: OnBatch = no_events,
    place: Placement = CPU,
    *,
    budget: int = 256_000_000,
) -> Any:
    """``layerwise_inference`` of a GraphSAGE where a machine asks for a remote row once per layer; nothing is sampled.

    Through DGL's loader lists of neighbours travel, and a row is asked for by every batch that needs it. The lists of
    this machine's nodes are here anyway; only rows are asked for. A narrow last layer multiplies before it is stored.

    Args:
        lists: made with the graph of ``features``.
        nodes: int64 ids of this machine's part that this trainer computes.
        budget: bytes for rows of other machines; what does not fit is asked for again by the next batch.
    """

    def source(x: Mapping[str, Any], name: str, ids: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        parts = ids.split(batch_size) if len(ids) else ()
        for part, own, mean in ahead(lambda: _means(lists, x[name], parts, budget), 1, "rows for the evaluation"):
            _blocks, own, mean = place.take([], own, mean)
            yield part, None, FirstLayer(own, mean)

    narrow = NarrowStores(model)
    return layerwise_inference(narrow, source, features, nodes, batch_size, new_store, wait_for_all, on_batch)


def _means(
    lists: NeighbourLists, x: Any, parts: tuple[Tensor, ...], budget: int
) -> Generator[tuple[Tensor, Tensor, Tensor], None, None]:
    """Ids, own rows and mean rows of all in-neighbours, for each batch of nodes."""
    table = RowTable(x, lists.book, budget)
    with torch.no_grad():
        for ids in parts:
            whole = lists.whole(ids)
            slots = table.slots(torch.cat([ids.to(lists.dtype), whole.sources]))
            sources = slots[len(ids) :]
            mean = F.embedding_bag(sources, table.rows, whole.indptr, mode="mean", include_last_offset=True)
            yield ids, torch.index_select(table.rows, 0, slots[: len(ids)]), mean
