"""Tests of ``rgcn.py``, on a graph of 3 authors, 2 fields and 6 papers (``academic_graph`` in conftest.py)."""

import dgl
import pytest
import torch

import rgcn
from conftest import academic_graph

CITES, WRITES, WRITTEN = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "written-by", "author")
ABOUT, OF = ("paper", "about", "field"), ("field", "of", "paper")


@pytest.fixture(scope="module")
def graph():
    return academic_graph()


@pytest.fixture
def whole(graph):
    """Return a block with all nodes as source and destination nodes, and all edges."""
    return dgl.to_block(graph, {ntype: graph.nodes(ntype) for ntype in graph.ntypes})


def make_block(edges, sources, destinations):
    """Return a block with the given edges. The first source nodes of a type are its destination nodes."""
    graph = dgl.heterograph(edges, sources)
    return dgl.to_block(
        graph, {ntype: torch.arange(count) for ntype, count in destinations.items()}, include_dst_in_src=True
    )


def test_types_of_a_chain():
    """a -> b -> c. The output is c. The layer before also needs b, and the input rows are those of all types."""
    chain = [("a", "r", "b"), ("b", "r", "c")]
    got = [rgcn.types_of_layers(chain, "c", layers) for layers in (1, 2, 3)]
    two = [{"a", "b", "c"}, {"b", "c"}, {"c"}]
    expected = [[{"b", "c"}, {"c"}], two, [{"a", "b", "c"}, *two]]
    assert got == expected


def test_types_of_papers(graph):
    """Authors and fields are sources of relations into papers. Without relations, only the target remains."""
    got = rgcn.types_of_layers(graph.canonical_etypes, "paper", 2), rgcn.types_of_layers([CITES], "paper", 2)
    expected = [{"author", "field", "paper"}] * 2 + [{"paper"}], [{"paper"}] * 3
    assert got == expected


def simple_layer(relations, types):
    """Return a layer whose ``own`` adds 1 to each number. ``of`` multiplies by 10, 100 and so on, one per relation."""
    layer = rgcn.RelationalLayer(relations, types, 1, 1)
    for linear in layer.own.values():
        linear.weight.data[:], linear.bias.data[:] = 1.0, 1.0
    for power, linear in enumerate(layer.of.values(), 1):
        linear.weight.data[:] = 10.0**power
    return layer


def test_layer(graph, whole):
    """Paper 0 has author 0 and is cited by papers 1 and 4. Paper 5 has no author, so this mean is zero."""
    layer = simple_layer([CITES, WRITES, WRITTEN], {"paper"})
    h = {"paper": torch.arange(6.0)[:, None], "author": torch.tensor([[3.0], [4.0], [5.0]]), "field": torch.zeros(2, 1)}
    out = layer(whole, h)
    got = {ntype: rows.flatten().tolist() for ntype, rows in out.items()}
    cited, authors = [2.5, 2, 3, 4, 5, 0], [3, 4, 4, 5, 3, 0]
    expected = {"paper": [v + 1 + 10 * cited[v] + 100 * authors[v] for v in range(6)]}
    assert got == expected


def test_several_types(whole):
    """Each type adds only the relations into this type. ``h`` stays as it is."""
    layer = simple_layer([WRITES, WRITTEN], {"paper", "author"})
    h = {"paper": torch.arange(6.0)[:, None], "author": torch.zeros(3, 1)}
    out = layer(whole, h)
    got = out["author"].flatten().tolist(), out["paper"].flatten().tolist(), h["author"].sum().item()
    expected = [201.0, 151.0, 301.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.0
    assert got == expected


def test_destination_nodes_are_first():
    """The block has 2 destination papers among 4, and no destination author."""
    edges = {CITES: ([2, 3], [0, 0]), WRITES: ([0], [1])}
    block = make_block(edges, {"paper": 4, "author": 1}, {"paper": 2})
    h = {"paper": torch.tensor([[1.0], [2.0], [3.0], [5.0]]), "author": torch.tensor([[7.0]])}
    out = simple_layer([CITES, WRITES], {"paper", "author"})(block, h)
    got = out["paper"].flatten().tolist(), tuple(out["author"].shape)
    expected = [2.0 + 40.0, 3.0 + 700.0], (0, 1)
    assert got == expected


@pytest.mark.parametrize("authors", [0, 2])
def test_missing_relation(authors):
    """The block lacks a relation. The others count, and every parameter and every input has a gradient (zeros)."""
    block = make_block({CITES: ([1], [0])}, {"paper": 2, "author": authors}, {"paper": 1, "author": authors})
    layer = simple_layer([CITES, WRITES], {"paper"})
    h = {"paper": torch.ones(2, 1), "author": torch.full((authors, 1), 5.0, requires_grad=True)}
    out = layer(block, h)["paper"]
    out.sum().backward()
    got = out.tolist(), layer.of["author:writes:paper"].weight.grad.tolist(), h["author"].grad is not None
    expected = [[12.0]], [[0.0]], True
    assert got == expected


def test_every_parameter_has_a_gradient():
    """Two layers, and the last block only has citations. DDP waits for the weights of authors in the first layer."""
    model = rgcn.RGCN([CITES, WRITES, WRITTEN, ABOUT, OF], "paper", {"paper": 3, "field": 2}, 4, 3, dropout=0.0)
    block = make_block({CITES: ([1], [0])}, {"paper": 2, "author": 0, "field": 0}, {"paper": 2})
    model(
        [block, block], {"paper": torch.ones(2, 3), "author": torch.zeros(0, 4), "field": torch.zeros(0, 2)}
    ).sum().backward()
    got = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    expected = []
    assert got == expected


def test_layer_of_the_model(graph, whole):
    """Layer 0 projects papers, and embeddings stay as they are. ReLU and dropout follow all layers but the last."""
    torch.manual_seed(0)
    model = rgcn.RGCN(graph.canonical_etypes, "paper", {"paper": 4}, 5, 3, dropout=0.75)
    x = {"paper": graph.nodes["paper"].data["feat"], "author": torch.randn(3, 5), "field": torch.randn(2, 5)}
    plain = model.layers[0](whole, {**x, "paper": model.project["paper"](x["paper"])})
    model.eval()
    out = model.layer(0, whole, x)
    for ntype in ("author", "field", "paper"):
        assert torch.allclose(out[ntype], plain[ntype].relu()), "in evaluation mode: ReLU, no dropout"
    h = {ntype: torch.randn(graph.num_nodes(ntype), 5) for ntype in graph.ntypes}
    model.train()
    assert torch.equal(model.layer(1, whole, h)["paper"], model.layers[1](whole, h)["paper"]), "no ReLU, no dropout"
    hidden = torch.cat([model.layer(0, whole, x)["paper"] for _ in range(300)]) / plain["paper"].relu().repeat(300, 1)
    hidden = hidden[~hidden.isnan()]
    got = sorted({round(value, 3) for value in hidden.tolist()}), abs((hidden == 0).float().mean().item() - 0.75) < 0.05
    expected = [0.0, 4.0], True
    assert got == expected
