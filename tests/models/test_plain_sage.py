"""GraphSAGE's layer in plain torch equals DGL's in values, gradients, initial weights and checkpoints."""

from itertools import pairwise

import dgl
import pytest
import torch
from dgl.nn import SAGEConv
from gpu.gpu_support import BLOCKS, TOLERANCE, largest_difference, random_block, run_layer

from tutorial_lib.models.graphsage import CscBlock, FirstLayer, GraphSAGE, mean_of_neighbors
from tutorial_lib.models.graphsage import SAGEConv as PlainSAGEConv
from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.trainer.placement import CPU


@pytest.mark.parametrize("idtype", ["long", "int"])
@pytest.mark.parametrize("shape", BLOCKS)
@pytest.mark.parametrize("sizes", [(16, 32), (32, 16), (8, 8)])
def test_equal_to_dgl_forward_and_backward(shape, sizes, idtype):
    (dst, src, edges, *_), block = BLOCKS[shape], random_block(*BLOCKS[shape])
    if edges == 0 and sizes[0] > sizes[1]:
        pytest.xfail("DGL 2.1.0 fails here: without edges it adds (D, in) to (D, out)")
    torch.manual_seed(3)
    theirs, ours = SAGEConv(*sizes, "mean"), PlainSAGEConv(*sizes)
    ours.load_state_dict(theirs.state_dict())
    into = torch.repeat_interleave(torch.arange(dst), block.indptr.diff())
    of_dgl = dgl.create_block((block.indices, into), num_src_nodes=src, num_dst_nodes=dst)
    x = torch.randn(src, sizes[0])
    expected = run_layer(theirs, of_dgl, x, CPU.device)
    found = run_layer(ours, CscBlock.from_block(getattr(of_dgl, idtype)()), x, CPU.device)
    assert found.keys() == expected.keys()
    assert largest_difference(found, expected) <= TOLERANCE


def test_node_without_edges_uses_self_weights():
    """DGL's layer fails here. All weights still get a gradient, which DDP waits for."""
    layer = PlainSAGEConv(32, 16)
    x, indices = torch.randn(3, 32), torch.empty(0, dtype=torch.int64)
    y = layer(CscBlock(torch.zeros(3, dtype=torch.int64), indices), x)
    assert torch.equal(y, layer.fc_self(x[:2]))
    y.sum().backward()
    assert torch.equal(layer.fc_neigh.weight.grad, torch.zeros(16, 32))
    assert mean_of_neighbors(CscBlock(torch.zeros(1, dtype=torch.int64), indices), x).shape == (0, 32)


class NativeSAGE(GraphSAGE):
    """The model with DGL's layers."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        torch.manual_seed(5)
        self.layers = torch.nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(self.sizes))


def test_checkpoints_are_interchangeable_with_dgl_layers(small_dataset):
    """Equal seeds give equal weights with equal names. On sampled blocks, both models return the same logits."""
    graph, models = small_dataset.graph, []
    for kind in (NativeSAGE, GraphSAGE):
        torch.manual_seed(5)
        models.append(kind(small_dataset.num_features, 16, 5).eval())
    theirs, ours = models
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert all(torch.equal(weight, ours.state_dict()[name]) for name, weight in theirs.state_dict().items())
    for _step, batch in BatchLoader(graph, torch.arange(200), [5, 5, 5], 50).batches(0):
        x = graph.ndata["feat"][batch.input_nodes]
        expected = theirs(batch.blocks, x)
        assert torch.allclose(ours([CscBlock.from_block(block) for block in batch.blocks], x), expected, atol=TOLERANCE)
        assert torch.allclose(ours(batch.blocks, x), expected, atol=TOLERANCE)  # takes DGL's blocks as they are
        outer = CscBlock.from_block(batch.blocks[0])
        first = FirstLayer(x[: batch.blocks[0].num_dst_nodes()], mean_of_neighbors(outer, x))
        assert torch.allclose(ours(batch.blocks[1:], first), expected, atol=TOLERANCE)
