"""Exact evaluation equals dense GraphSAGE, waits for other processes and adds counts over ranks."""

from types import SimpleNamespace

import dgl
import pytest
import torch
from rank_functions import score_share

from support.processes import fix_openmp, fork
from tutorial_lib.models.graphsage import GraphSAGE
from tutorial_lib.tasks import task as inference
from tutorial_lib.tasks.task import graph_batches, layerwise_inference
from tutorial_lib.trainer.comm import mean_or_nan
from tutorial_lib.trainer.events import no_events
from tutorial_lib.trainer.placement import CPU

NODES = 30


class Strict(GraphSAGE):
    """A model whose layers fail in training mode."""

    def layer(self, depth, block, rows):
        assert not self.training
        return super().layer(depth, block, rows)


@pytest.mark.parametrize("layers", [1, 3])
def test_layerwise_inference_equals_dense_formula(layers, monkeypatch):
    """Node 29 has no edge. This process computes half of the nodes. The other rows appear at the barrier."""
    torch.manual_seed(0)
    src, dst = torch.randint(NODES - 1, (2, 90))
    x, order, stores, expected = torch.randn(NODES, 5), torch.randperm(NODES), [], []
    model = Strict(5, 8, 3, layers, dropout=0.9)
    model.train()
    adjacency = torch.zeros(NODES, NODES).index_put((dst, src), torch.ones(90), accumulate=True)
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    h = x
    for depth, layer in enumerate(model.layers):
        h = h @ layer.fc_self.weight.T + mean @ h @ layer.fc_neigh.weight.T + layer.fc_self.bias
        h = h.relu() if depth < layers - 1 else h.sigmoid()
        expected.append(h.detach())
    half = NODES // 2
    shard = SimpleNamespace(
        graph=dgl.graph((src, dst), num_nodes=NODES),
        target="_N",
        placement=CPU,
        emit=no_events,
        local_nodes=lambda _ntype: order[:half],
        new_store=lambda _depth, width, _ntype: stores.append(torch.full((NODES, width), torch.nan)) or stores[-1],
    )

    def wait_for_all() -> None:
        assert stores[-1][order[:half]].isfinite().all()
        stores[-1][order[half:]] = expected[len(stores) - 1][order[half:]]

    monkeypatch.setattr(inference, "barrier", wait_for_all)
    found = layerwise_inference(model, graph_batches, x, shard, 7, last=torch.sigmoid)
    assert torch.allclose(found, expected[-1], atol=1e-5)
    assert not found.requires_grad
    assert len(stores) == layers


def test_accuracy_uses_counts_of_all_ranks():
    """D7. Masks are uint8 as in a DistGraph, and the accuracy uses the counts of all ranks."""
    assert fork(fix_openmp(score_share), 2, backend="gloo", threads=1) == [(5 / 8, 1 / 2)] * 2
    assert mean_or_nan(0, 0) != mean_or_nan(0, 0)  # not a number
