"""Tests of ``sage.py``."""

import dgl
import dgl.nn as dglnn
import torch

from sage import GraphSAGE, MeanConv, mean_of_neighbors

# Destination 0 receives the rows 1, 2 and 4, destination 1 receives row 3, and destination 2 receives no row.
BLOCK = dgl.create_block(([1, 2, 4, 3], [0, 0, 0, 1]), num_src_nodes=5, num_dst_nodes=3)
X = torch.tensor([[9.0, 9.0], [1.0, 0.0], [2.0, 3.0], [5.0, 7.0], [6.0, -6.0]])


def model_of_two_layers(dropout=0.0):
    torch.manual_seed(0)
    return GraphSAGE(6, 8, 3, dropout=dropout)


def whole_graph(model, graph, x):
    """Compute the scores of a model of two layers without blocks."""
    hidden = model.layers[0](graph, x).relu()
    return model.layers[1](graph, hidden)


def test_mean_of_neighbors():
    """Add the rows of the sources to their destinations, then divide by the number of incoming edges."""
    got = mean_of_neighbors(BLOCK, X)[:2]
    expected = torch.tensor([[3.0, -1.0], [5.0, 7.0]])
    assert torch.allclose(got, expected)


def test_mean_of_no_neighbors():
    """Divide by at least 1. The result has one row for each destination node, also for a node without edges."""
    got = mean_of_neighbors(BLOCK, X)
    expected = torch.tensor([[3.0, -1.0], [5.0, 7.0], [0.0, 0.0]])
    assert got.shape == expected.shape
    assert torch.allclose(got, expected)


def test_mean_has_gradients():
    """The rows have gradients. Use operations of torch, and do not write into a tensor of NumPy or a list."""
    x = X.clone().requires_grad_()
    mean_of_neighbors(BLOCK, x).sum().backward()
    got = x.grad[:, 0]
    expected = torch.tensor([0.0, 1 / 3, 1 / 3, 1.0, 1 / 3])
    assert torch.allclose(got, expected)


def test_layer_equals_the_layer_of_dgl():
    """The layer adds two linear maps, one of the node's row and one of the mean. It has no activation."""
    torch.manual_seed(0)
    mine, other = MeanConv(2, 4), dglnn.SAGEConv(2, 4, "mean")
    other.load_state_dict(mine.state_dict())
    got = mine(BLOCK, X)
    expected = other(BLOCK, X)
    assert torch.allclose(got, expected, atol=1e-5)


def test_forward_of_two_layers(tiny):
    """Apply layer k to blocks[k]. ReLU follows the first layer, and the last layer returns unmodified scores."""
    model = model_of_two_layers()
    graph, seeds = tiny.local_partition, torch.tensor([3, 0])
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
    inputs, _, blocks = sampler.sample_blocks(graph, seeds)
    got = model(blocks, tiny.ndata["feat"][inputs])
    expected = whole_graph(model, graph, torch.eye(6))[seeds]
    assert torch.allclose(got, expected, atol=1e-5)


def test_forward_uses_dropout_between_layers():
    """Dropout follows ReLU between two layers. With a rate of 1, only the bias of the last layer is left."""
    model = model_of_two_layers(dropout=1.0)
    block = dgl.create_block(([0], [0]), num_src_nodes=1, num_dst_nodes=1)
    got = model([block, block], torch.ones(1, 6))[0]
    expected = model.layers[1].fc_self.bias
    assert torch.allclose(got, expected)


def test_forward_with_fewer_blocks():
    """zip(self.layers, blocks) ends with the shorter one. The first of two layers is then the only one, with ReLU."""
    model = model_of_two_layers()
    block = dgl.create_block(([0], [0]), num_src_nodes=1, num_dst_nodes=1)
    got = model([block], -torch.ones(1, 6))
    expected = model.layers[0](block, -torch.ones(1, 6)).relu()
    assert torch.equal(got, expected)


def test_inference_is_exact(tiny):
    """Use all neighbors, and all nodes before the next layer. The batches need not have equal sizes."""
    model = model_of_two_layers(dropout=0.9)
    got = model.inference(tiny, tiny.ndata["feat"], batch_size=4)
    expected = whole_graph(model, tiny.local_partition, torch.eye(6))
    assert torch.allclose(got, expected, atol=1e-5)


def test_inference_restores_the_mode(tiny):
    """Remember self.training before self.eval(), and restore this mode at the end."""
    got = []
    for model in (model_of_two_layers().train(), model_of_two_layers().eval()):
        scores = model.inference(tiny, tiny.ndata["feat"])
        got.append((len(scores), model.training))
    expected = [(6, True), (6, False)]
    assert got == expected
