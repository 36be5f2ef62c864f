"""Exact evaluation in one process: the formula of GraphSAGE with dense matrices, and what callers are told."""

from __future__ import annotations

from types import SimpleNamespace

import dgl
import pytest
import torch

from tutorial_lib.models.graphsage import GraphSAGE
from tutorial_lib.tasks.inference import from_graph, layerwise_inference
from tutorial_lib.trainer.comm import accuracy, sum_over_ranks
from tutorial_lib.trainer.events import no_events
from tutorial_lib.trainer.placement import CPU

NODES = 30


class Strict(GraphSAGE):
    """A layer of a user's own may have dropout in it."""

    def layer(self, depth, block, rows):
        assert not self.training
        return super().layer(depth, block, rows)


@pytest.mark.parametrize("layers", [1, 3])
def test_layer_by_layer_is_the_formula(layers):
    """Node 29 has no edge; nodes come in another order than that of the graph."""
    torch.manual_seed(0)
    src, dst = torch.randint(NODES - 1, (2, 90))
    x, order, barriers = torch.randn(NODES, 5), torch.randperm(NODES), []
    model = Strict(5, 8, 3, layers, dropout=0.9)
    model.train()
    shard = SimpleNamespace(
        graph=dgl.graph((src, dst), num_nodes=NODES),
        target="_N",
        place=CPU,
        emit=no_events,
        own=lambda _ntype: order,
        new_store=lambda _depth, width, _ntype: torch.full((NODES, width), float("nan")),
        barrier=lambda: barriers.append(1),
    )
    found = layerwise_inference(model, from_graph(shard), x, shard, 7, last=torch.sigmoid)
    adjacency = torch.zeros(NODES, NODES).index_put((dst, src), torch.ones(90), accumulate=True)
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    for depth, layer in enumerate(model.layers):
        x = x @ layer.fc_self.weight.T + mean @ x @ layer.fc_neigh.weight.T + layer.fc_self.bias
        x = x.relu() if depth < layers - 1 else x
    assert torch.allclose(found, x.sigmoid(), atol=1e-5)
    assert not found.requires_grad
    assert len(barriers) == layers


def test_shares_and_sums():
    assert accuracy(3, 4) == 0.75
    assert accuracy(0, 0) != accuracy(0, 0)  # not a number
    assert sum_over_ranks([1, 2.5]) == [1.0, 2.5]
