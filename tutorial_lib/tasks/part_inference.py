"""Layer-wise inference where each machine asks for a remote row once per layer, and nothing is sampled.

``evaluation.layerwise_inference`` draws "all neighbours" batch by batch through DGL's loader: lists travel, and a row
is asked for by every batch that needs it. The lists of this machine's nodes are here anyway; only rows are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.batches.background import ahead
from tutorial_lib.batches.neighbours import NeighbourLists
from tutorial_lib.batches.table import RowTable
from tutorial_lib.models.sage import FirstLayer, GraphSAGE
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.steps import OnBatch, no_pulse


def layerwise_over_part(
    model: GraphSAGE,
    lists: NeighbourLists,
    features: Any,
    nodes: Tensor,
    batch_size: int,
    new_store: Callable[[int, int], Any],
    wait_for_all: Callable[[], None],
    on_batch: OnBatch = no_pulse,
    place: Placement = CPU,
    *,
    budget: int = 256_000_000,
) -> Any:
    """Logits of all nodes, like ``evaluation.layerwise_inference``, whose arguments it takes.

    Args:
        lists: made with the graph of ``features``.
        nodes: int64 ids of this machine's part that this trainer computes.
        budget: bytes for rows of other machines; what does not fit is asked for again by the next batch.

    Returns:
        The store of the last layer, (N, number of classes).
    """
    model.eval()
    x = features
    with torch.no_grad():
        for depth in range(len(model.layers)):
            y = new_store(depth, model.sizes[depth + 1])
            parts = nodes.split(batch_size) if len(nodes) else ()
            inputs = ahead(lambda x=x, parts=parts: _inputs(lists, x, parts, budget), 1, "rows for the evaluation")
            for number, (ids, own, mean) in enumerate(inputs, start=1):
                _blocks, own, mean = place.take([], own, mean)
                y[ids] = model.layer(depth, None, FirstLayer(own, mean)).cpu()
                on_batch(number, len(parts), layer=depth, layers=len(model.layers))
            wait_for_all()
            x = y
    return x


def _inputs(
    lists: NeighbourLists, x: Any, parts: tuple[Tensor, ...], budget: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ids, own rows and mean rows of all in-neighbours, for each batch of nodes."""
    table = RowTable(x, lists.book, budget)
    with torch.no_grad():
        for ids in parts:
            whole = lists.whole(ids)
            slots = table.slots(torch.cat([ids.to(lists.dtype), whole.sources]))
            sources = slots[len(ids) :]
            mean = F.embedding_bag(sources, table.rows, whole.indptr, mode="mean", include_last_offset=True)
            yield ids, torch.index_select(table.rows, 0, slots[: len(ids)]), mean
