"""Exact evaluation: layer by layer over all neighbours, on one graph or on a distributed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.batches.nodes import FULL, BatchLoader
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.trainer.placement import CPU, Placement
from tutorial_lib.trainer.steps import OnBatch, no_pulse


def layerwise_inference(
    model: GraphSAGE,
    graph: Any,
    features: Any,
    nodes: Tensor,
    batch_size: int,
    new_store: Callable[[int, int], Any],
    wait_for_all: Callable[[], None] = lambda: None,
    on_batch: OnBatch = no_pulse,
    place: Placement = CPU,
) -> Any:
    """Logits of all nodes, computed for all nodes one layer at a time, so that nothing is computed twice.

    Sampling hop by hop would compute the hidden vector of a popular node once for each batch that it is in.

    Args:
        graph: ``DGLGraph`` or ``DistGraph``.
        features: float32 (N, in_size), a tensor or a ``DistTensor``.
        nodes: int64 ids this process computes; those of all processes together must be all N. Rows of a ``DistTensor``
            must lie on this machine: a write to another one returns before it has arrived.
        new_store: ``new_store(depth, width)`` makes the float32 (N, width) store of a layer's output.
        wait_for_all: barrier between layers; the next layer reads what others wrote.
        on_batch: called after each batch with batches done and batches of the layer; ``layer=`` (from 0), ``layers=``.
        place: where the model is; features and stores stay on the CPU.

    Returns:
        The store of the last layer, (N, number of classes).
    """
    model.eval()
    x = features
    with torch.no_grad():
        for depth in range(len(model.layers)):
            y = new_store(depth, model.sizes[depth + 1])
            loader = BatchLoader(graph, nodes, [FULL], batch_size)
            for number, batch in enumerate(loader, start=1):
                (block,), rows = place.take(batch.blocks, x[batch.input_nodes])
                y[batch.seeds] = model.layer(depth, block, rows).cpu()
                on_batch(number, len(loader), layer=depth, layers=len(model.layers))
            wait_for_all()
            x = y
    return x


def sum_over_ranks(values: list[float]) -> list[float]:
    """Sum each number over all ranks, in double precision; without a process group, the numbers themselves."""
    total = torch.tensor(values, dtype=torch.float64)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)
    return total.tolist()


def accuracy(correct: float, count: float) -> float:
    """Share of correct answers."""
    return correct / count if count else float("nan")
