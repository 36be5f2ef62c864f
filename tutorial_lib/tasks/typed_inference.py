"""Exact evaluation of a graph with several types: ``evaluation.layerwise_inference``, type by type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.batches.nodes import FULL
from tutorial_lib.batches.typed import TypedLoader, rows_of
from tutorial_lib.models.rgcn import RGCN
from tutorial_lib.trainer.steps import OnBatch, no_pulse


@torch.no_grad()
def typed_inference(
    model: RGCN,
    graph: Any,
    stores: Mapping[str, Any],
    nodes: Mapping[str, Tensor],
    batch_size: int,
    new_store: Callable[[int, str, int], Any],
    wait_for_all: Callable[[], None] = lambda: None,
    on_batch: OnBatch = no_pulse,
) -> Any:
    """Logits of all nodes of the target type, over all neighbours, one layer at a time.

    Args:
        graph: ``DGLGraph`` or ``DistGraph``.
        stores: by type, features or learned rows: tensors or ``DistTensor``s.
        nodes: by type, int64 ids this process computes; of all processes together, all nodes. Rows of a ``DistTensor``
            must lie on this machine.
        new_store: ``new_store(depth, type, width)`` makes the float32 store of a layer's output; every process asks for
            the same ones in the same order.
        wait_for_all: barrier between layers; the next layer reads what others wrote.
        on_batch: called after each batch with batches done and batches of the type; ``layer=``, ``layers=``.

    Returns:
        The store of the last layer, (nodes of the target type, classes).
    """
    model.eval()
    x = dict(stores)
    for depth, width in enumerate(model.sizes[1:]):
        y = {name: new_store(depth, name, width) for name in model.types[depth + 1]}
        for name, store in y.items():
            loader = TypedLoader(graph, {name: nodes[name]}, [FULL], batch_size)
            for number, batch in enumerate(loader, start=1):
                rows = {kind: rows_of(x[kind], batch.input_nodes[kind]) for kind in model.types[depth]}
                h = model.inputs(rows) if depth == 0 else rows
                store[batch.seeds[name]] = model.layer(depth, batch.blocks[0], h)[name]
                on_batch(number, len(loader), layer=depth, layers=len(model.layers))
        wait_for_all()
        x = y
    return x[model.target]
