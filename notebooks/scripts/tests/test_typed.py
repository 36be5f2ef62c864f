"""Tests of ``typed.py``, on a DistGraph of 3 authors, 2 fields and 6 papers in this process."""

import itertools

import dgl
import pytest
import torch
from dgl.distributed import DistEmbedding

import typed
from rgcn import RGCN

CPU = torch.device("cpu")
NONE = torch.tensor([], dtype=torch.int64)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Barriers of one rank do nothing."""
    monkeypatch.setattr(typed.dist, "barrier", lambda *_: None)


NUMBERS = itertools.count()


def embedding(g, ntype, width):
    """Return a new table of zeros. Each one has another name, because DGL shares the rows of a name."""
    policy = g.get_node_partition_policy(ntype)
    return DistEmbedding(g.num_nodes(ntype), width, f"{ntype}-{next(NUMBERS)}", part_policy=policy)


def sources(block, ntype):
    return sorted(block.srcnodes[ntype].data[dgl.NID].tolist())


def test_sample_all_neighbors(academic):
    """The seeds are the destination nodes of the last block. All edges into them are in this block."""
    count, blocks = typed.sample_types(academic[0], [-1, -1], set(), "paper", torch.tensor([3, 0]))
    last = blocks[-1]
    got = count, last.dstnodes["paper"].data[dgl.NID].tolist(), [sources(last, t) for t in ("author", "field", "paper")]
    expected = 2, [3, 0], [[0, 2], [0, 1], [0, 1, 3, 4]]
    assert got == expected
    got, expected = len(blocks), 2
    assert got == expected


def test_fanouts(academic):
    """The fan-out applies to each relation. The first one belongs to the first block, as in DGL's samplers."""
    _, blocks = typed.sample_types(academic[0], [1, 2], set(), "paper", torch.arange(6))
    degrees = [max(int(b.in_degrees(etype=r).max()) for r in b.canonical_etypes if b.num_edges(r)) for b in blocks]
    got, expected = degrees, [1, 2]
    assert got == expected
    relations = {relation for relation in blocks[-1].canonical_etypes if blocks[-1].num_edges(relation)}
    got, expected = len(relations), 3  # cites, writes, and of
    assert got == expected


def test_seeds_of_another_type(academic):
    """The IDs are type-wise, so author 1 is not paper 1."""
    count, (block,) = typed.sample_types(academic[0], [-1], set(), "author", torch.tensor([1]))
    got = count, [sources(block, ntype) for ntype in ("author", "field", "paper")]
    expected = 1, [[1], [1], [1, 2]]
    assert got == expected


def test_omitted_types(academic):
    """No neighbor of an omitted type is sampled, in no hop. Other relations keep their fan-out."""
    _, blocks = typed.sample_types(academic[0], [-1, -1], {"field", "author"}, "paper", torch.tensor([0]))
    got = [[sources(block, ntype) for ntype in ("author", "field", "paper")] for block in blocks]
    expected = [[[], [], [0, 1, 2, 4, 5]], [[], [], [0, 1, 4]]]
    assert got == expected


def test_sample_without_seeds(academic):
    """DGL needs a node, so sample node 0 of the type. The number of seeds is 0."""
    count, blocks = typed.sample_types(academic[0], [1, 1], set(), "field", NONE)
    got, expected = (count, blocks[-1].dstnodes["field"].data[dgl.NID].tolist()), (0, [0])
    assert got == expected


def test_read(academic):
    """Rows are in the order of the source nodes. The embedding records its read once, and features are no embedding."""
    g = academic[0]
    tables = {"author": embedding(g, "author", 2), "paper": g.nodes["paper"].data["feat"]}
    tables["author"].weight[torch.arange(3)] = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    _, (block,) = typed.sample_types(g, [-1], set(), "paper", torch.tensor([3, 1, 0]))
    rows = typed.read_types(tables, block)
    ids = {ntype: block.srcnodes[ntype].data[dgl.NID] for ntype in tables}
    got = sorted(rows), rows["author"].tolist(), rows["paper"].tolist()
    features = g.nodes["paper"].data["feat"][ids["paper"]]
    expected = ["author", "paper"], [[2.0 * v + 1, 2.0 * v + 2] for v in ids["author"].tolist()], features.tolist()
    assert got == expected
    got = [read.tolist() for read, _ in tables["author"]._trace], rows["author"].requires_grad
    expected = [ids["author"].tolist()], True
    assert got == expected


class Strict:
    """A table that rejects an empty tensor of IDs, as a DistTensor on several machines does."""

    shape = (6, 4)

    def __getitem__(self, ids):
        assert len(ids), "an empty tensor of IDs"
        return torch.ones(len(ids), 4)


def test_read_nothing(academic):
    """Paper 5 has no author. The rows have the shape (0, width), and nothing is read or recorded."""
    g = academic[0]
    tables = {"author": embedding(g, "author", 7), "paper": Strict(), "field": Strict()}
    _, (block,) = typed.sample_types(g, [-1], set(), "paper", torch.tensor([5]))
    rows = typed.read_types(tables, block)
    got = {ntype: tuple(x.shape) for ntype, x in rows.items()}, len(tables["author"]._trace)
    expected = {"author": (0, 7), "paper": (2, 4), "field": (0, 4)}, 0
    assert got == expected


def new_model(relations, dropout=0.5):
    torch.manual_seed(0)
    return RGCN(relations, "paper", {"paper": 4}, 3, 5, dropout=dropout)


def scores_of_one_block(model, graph, x):
    """Compute the scores of all papers at once, with a block of all nodes and edges."""
    whole = dgl.to_block(graph, {ntype: graph.nodes(ntype) for ntype in graph.ntypes})
    with torch.no_grad():
        return model.eval()([whole, whole], x)


def rows_of(graph, tables):
    tables = {name: table.weight if isinstance(table, DistEmbedding) else table for name, table in tables.items()}
    return {name: table[torch.arange(graph.num_nodes(name))] for name, table in tables.items()}


@pytest.mark.parametrize("batch_size", [1000, 2])
@pytest.mark.parametrize("omit", [set(), {"field"}])
def test_exact_scores(academic, monkeypatch, batch_size, omit):
    """The scores are those of a block with all nodes, without dropout, also in batches of two nodes."""
    (g, graph), calls = academic, []
    sample_types = typed.sample_types

    def logged(g, fanouts, omit, ntype, seeds):
        calls.append((list(fanouts), set(omit)))
        return sample_types(g, fanouts, omit, ntype, seeds)

    monkeypatch.setattr(typed, "sample_types", logged)
    model = new_model([r for r in g.canonical_etypes if r[0] not in omit]).train()
    tables = {"paper": g.nodes["paper"].data["feat"]}
    for name in {"author", "field"} - omit:
        tables[name] = embedding(g, name, 3)
        tables[name].weight[torch.arange(g.num_nodes(name))] = torch.randn(g.num_nodes(name), 3)
    scores = typed.infer_types(model, g, tables, omit, CPU, batch_size)[torch.arange(6)]
    keep = dgl.edge_type_subgraph(graph, [r for r in g.canonical_etypes if r[0] not in omit])
    expected = scores_of_one_block(model, keep, rows_of(g, tables))
    torch.testing.assert_close(scores, expected)
    got, expected = [call for call in calls if call != ([-1], omit)], []
    assert got == expected
    got, expected = sum(len(table._trace) for table in tables.values() if isinstance(table, DistEmbedding)), 0
    assert got == expected


def test_ranks_wait_for_each_other(academic, monkeypatch):
    """This rank computes no author. It writes all its rows of a layer, and waits before the next layer reads them."""
    g, events = academic[0], []

    class Logged:
        def __init__(self, number, ntype, width):
            self.name, self.shape = (number, ntype), (g.num_nodes(ntype), width)

        def __getitem__(self, ids):
            events.append(("read", *self.name))
            return torch.zeros(len(ids), self.shape[1])

        def __setitem__(self, ids, rows):
            assert tuple(rows.shape) == (len(ids), self.shape[1])
            events.append(("write", *self.name, ids.tolist()))

    nodes = {"author": NONE, "field": torch.arange(2), "paper": torch.arange(2, 6)}
    monkeypatch.setattr(typed, "nodes_of_type", lambda g, ntype: nodes[ntype])  # noqa: ARG005
    monkeypatch.setattr(typed, "layer_rows", lambda g, number, ntype, width: Logged(number, ntype, width))  # noqa: ARG005
    monkeypatch.setattr(typed.dist, "barrier", lambda *_: events.append("barrier"))
    tables = {"paper": g.nodes["paper"].data["feat"], **{name: embedding(g, name, 3) for name in ("author", "field")}}
    typed.infer_types(new_model(g.canonical_etypes), g, tables, set(), CPU)
    got = [event for event in events if event[0] != "read"]
    expected = [("write", 0, "field", [0, 1]), ("write", 0, "paper", [2, 3, 4, 5]), "barrier"]
    expected += [("write", 1, "paper", [2, 3, 4, 5]), "barrier"]
    assert got == expected
    read = {event[1:] for event in events[3:] if event[0] == "read"}
    got, expected = read, {(0, ntype) for ntype in g.ntypes}
    assert got == expected
