"""Exact evaluation of link prediction: embeddings of all nodes, ranks of held-out edges, what a probe finds in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.batches.edges import FullBatches
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.tasks.evaluation import accuracy
from tutorial_lib.tasks.link_scores import HITS_AT, ranks_among, unit
from tutorial_lib.tasks.link_task import LinkData
from tutorial_lib.trainer.steps import OnBatch, no_pulse

ROWS = 100_000  # read at a time


@torch.no_grad()
def embed(
    model: GraphSAGE,
    data: LinkData,
    nodes: Tensor,
    batch_size: int,
    new_store: Callable[[int, int], Any],
    wait_for_all: Callable[[], None] = lambda: None,
    on_batch: OnBatch = no_pulse,
) -> Any:
    """Exact embeddings of length 1 from all training edges, layer by layer.

    The arguments are those of ``evaluation.layerwise_inference``, which would also use the edges that are held out.
    """
    model.eval()
    x = data.features
    for depth in range(len(model.layers)):
        y = new_store(depth, model.sizes[depth + 1])
        batches = FullBatches(data.view, nodes, batch_size)
        for number, (seeds, inputs, block) in enumerate(batches, start=1):
            (placed,), rows = data.place.take([block], x[inputs])
            h = model.layer(depth, placed, rows)
            y[seeds] = (unit(h) if depth == len(model.layers) - 1 else h).cpu()
            on_batch(number, len(batches), layer=depth, layers=len(model.layers))
        wait_for_all()
        x = y
    return x


def edge_ranks(data: LinkData, embeddings: Any, edges: Tensor, batch_size: int) -> Tensor:
    """Rank of each edge among ``data.negatives``; float32 (edges,)."""
    negatives = data.negatives
    h_negatives = embeddings[negatives]
    found = []
    for ids in edges.split(batch_size) if len(edges) else ():
        src, dst = data.view.graph.find_edges(ids)
        allowed = (negatives != src[:, None]) & (negatives != dst[:, None])
        found.append(ranks_among(embeddings[src], embeddings[dst], h_negatives, allowed))
    return torch.cat(found) if found else torch.empty(0)


def scores_of(sums: list[float], counts: list[float]) -> dict[str, Any]:
    """The fields of the event.

    Args:
        sums: ``rank_sums`` of the validation and of the test edges.
        counts: right predictions of the probe and nodes, for validation and test nodes.
    """
    return {
        "val_accuracy": accuracy(sums[0], sums[2]),
        "test_accuracy": accuracy(sums[3], sums[5]),
        "scores": {
            f"val_hits@{HITS_AT}": accuracy(sums[1], sums[2]),
            f"test_hits@{HITS_AT}": accuracy(sums[4], sums[5]),
            "val_probe_accuracy": accuracy(counts[0], counts[1]),
            "test_probe_accuracy": accuracy(counts[2], counts[3]),
        },
    }


def thinned(ids: Tensor, most: int) -> Tensor:
    """At most ``most`` of the ids, at equal distances."""
    return ids[:: -(-len(ids) // most)]


def save_embeddings(path: Path, h: Any, node_map: np.ndarray) -> None:
    """Write the rows of a ``DistTensor`` in the data set's order, some at a time."""
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=tuple(h.shape))
    for ids in torch.arange(len(node_map)).split(ROWS):
        rows[node_map[ids.numpy()]] = h[ids].numpy()
    rows.flush()
