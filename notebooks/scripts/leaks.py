"""Train and evaluate with two mistakes that raise no error, on a sparse graph in this process (lesson 13)."""

import dgl
import torch

from held_out import TrainingGraph
from link import pair_loss, sample_edges
from ranking import rank_edges
from sage import GraphSAGE


def sparse_graph(nodes=2000, kinds=40, size=64):
    """Return a graph with about three neighbors per node, 80 % of the same kind. Features: kind and louder noise."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(kinds, (nodes,), generator=generator)
    u, v = torch.randint(nodes, (2, 200_000), generator=generator)
    chance = torch.where(kind[u] == kind[v], 0.48, 0.003)
    keep = (u != v) & (torch.rand(len(u), generator=generator) < chance)
    graph = dgl.to_bidirected(dgl.graph((u[keep], v[keep]), num_nodes=nodes))
    centers = 0.6 * torch.randn(kinds, size, generator=generator)
    graph.ndata["feat"] = centers[kind] + torch.randn(nodes, size, generator=generator)
    return graph


class LeakyGraph(TrainingGraph):
    """Hide the held-out edges, but not the edges of the batch."""

    def sample_neighbors(self, nodes, fanout, exclude_edges=None, **options):  # noqa: ARG002
        """Ignore ``exclude_edges``, as a DistGraph does."""
        return super().sample_neighbors(nodes, fanout, **options)


def train(graph, seed, epochs=10):
    """Train a model on the training edges. Return the model and the mean loss of the last epoch."""
    torch.manual_seed(seed)
    dgl.seed(seed)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 32, 32, dropout=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train_ids = (graph.sides(*graph.edges()) == 0).nonzero().flatten()
    for _epoch in range(epochs):
        total = 0.0
        for edges in train_ids[torch.randperm(len(train_ids))].split(500):
            blocks, places = sample_edges(graph, [-1, -1], "uniform", 1, edges)
            loss = pair_loss(model(blocks, graph.ndata["feat"][blocks[0].srcdata[dgl.NID]]), *places)
            optimizer.zero_grad()
            (loss / len(edges)).backward()
            optimizer.step()
            total += loss.item()
    return model, total / len(train_ids)


def score(model, graph, messages):
    """Return the MRR of the test edges of ``graph``. The vectors are computed over the edges in ``messages``."""
    h = model.inference(messages, graph.ndata["feat"])
    tests = (graph.sides(*graph.edges()) == 2).nonzero().flatten()
    candidates = torch.arange(0, graph.num_nodes(), 20)
    return (1 / rank_edges(h, *graph.find_edges(tests), candidates)).mean().item()
