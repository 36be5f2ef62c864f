"""Tests of ``link.py``, on a graph of 30 nodes. One test trains with train.py on one and two real ranks."""

import math
import pickle
from types import SimpleNamespace

import dgl
import numpy as np
import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.nn.functional as F

import link
from held_out import TrainingGraph, split_edges
from support.processes import fork

ORIGINAL = torch.arange(30).flip(0)  # original ID of each node


@pytest.fixture(scope="module")
def graph():
    """Each node is connected with the twelve nodes around it, in both directions. The edges are in random order."""
    u = torch.arange(30).repeat_interleave(6)
    v = (u + torch.arange(1, 7).repeat(30)) % 30
    order = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    graph = dgl.graph((torch.cat([u, v])[order], torch.cat([v, u])[order]), num_nodes=30)
    angle = torch.arange(30) * 2 * math.pi / 30
    graph.ndata["feat"] = torch.stack([angle.cos(), angle.sin()], dim=1)
    return graph


@pytest.fixture(scope="module")
def training(graph):
    return TrainingGraph(graph, ORIGINAL, 0.2)


class Machine:
    """A DistGraph of a million nodes. Nodes 600 to 609 belong to this machine, whose part is 1."""

    def num_nodes(self):
        return 1_000_000

    def get_partition_book(self):
        return SimpleNamespace(partid=1, partid2nids=lambda part: torch.arange(600, 610) if part == 1 else None)


@pytest.mark.parametrize("way", ["uniform", "joint", "local", "local_joint"])
def test_negatives(way):
    """Local nodes are the nodes of this machine. Joint rows are equal, and others differ. The shape is (count, k)."""
    torch.manual_seed(0)
    nodes = link.sample_negatives(Machine(), way, 40, 8)
    got = tuple(nodes.shape), nodes.dtype, bool((nodes == nodes[:1]).all())
    expected = (40, 8), torch.int64, way.endswith("joint")
    assert got == expected
    local = ((nodes >= 600) & (nodes < 610)).all().item()
    got, expected = local, way.startswith("local")
    assert got == expected
    if way == "uniform":
        spread = (nodes / 1e6).mean().item()
        got, expected = abs(spread - 0.5) < 0.08, True
        assert got == expected
    if way == "local":
        got, expected = sorted(set(nodes.flatten().tolist())), list(range(600, 610))
        assert got == expected
    torch.manual_seed(0)
    got, expected = torch.equal(link.sample_negatives(Machine(), way, 40, 8), nodes), True
    assert got == expected
    got, expected = tuple(link.sample_negatives(Machine(), way, 0, 8).shape), (0, 8)
    assert got == expected


@pytest.mark.parametrize("way", ["uniform", "joint"])
def test_positions_in_a_batch(graph, training, way):
    """The positions lead to the nodes of the edges, among seed nodes that occur once. Negatives are those sampled."""
    edges = torch.tensor([17, 4, 250, 99, 4])
    torch.manual_seed(3)
    others = link.sample_negatives(training, way, 5, 3)
    torch.manual_seed(3)
    blocks, (src, dst, negatives) = link.sample_edges(training, [-1, -1], way, 3, edges)
    seeds = blocks[-1].dstdata[dgl.NID]
    got = [seeds[src].tolist(), seeds[dst].tolist(), seeds[negatives].tolist()]
    expected = [ids.tolist() for ids in (*graph.find_edges(edges), others)]
    assert got == expected
    got, expected = len(seeds), len({*expected[0], *expected[1], *others.flatten().tolist()})
    assert got == expected


def test_batch_without_its_edges(graph, training):
    """The blocks contain all training edges to their nodes, except the edges of the batch in both directions."""
    sides = training.sides(*graph.edges())
    edges = (sides == 0).nonzero().flatten()[:20]
    blocks, _ = link.sample_edges(training, [-1, -1], "uniform", 1, edges)
    u, v = graph.find_edges(edges)
    batch = {*zip(u.tolist(), v.tolist(), strict=True), *zip(v.tolist(), u.tolist(), strict=True)}
    src, dst = graph.edges()
    for block in blocks:
        nodes = set(block.dstdata[dgl.NID].tolist())
        everything = zip(src.tolist(), dst.tolist(), sides.tolist(), strict=True)
        expected = sorted((a, b) for a, b, side in everything if b in nodes and side == 0 and (a, b) not in batch)
        a, b = graph.find_edges(block.edata[dgl.EID])
        got = sorted(zip(a.tolist(), b.tolist(), strict=True))
        assert got == expected


def test_fanouts(training):
    """The first fanout belongs to the outermost hop, as in DGL's samplers."""
    blocks, _ = link.sample_edges(training, [2, -1], "uniform", 1, torch.arange(40))
    got = [int(block.in_degrees().max()) for block in blocks]
    assert got[0] <= 2
    got, expected = got[1] > 2, True
    assert got == expected


@pytest.mark.parametrize("way", ["uniform", "joint"])
def test_batch_without_edges(training, way):
    """Without edges, sample node 0. ``find_edges`` of DistGraph rejects an empty tensor."""

    class Strict(TrainingGraph):
        def find_edges(self, ids):
            assert len(ids), "find_edges needs an edge"
            return self.g.find_edges(ids)

    strict = Strict(training.g, ORIGINAL, 0.2)
    blocks, places = link.sample_edges(strict, [-1], way, 3, torch.tensor([], dtype=torch.int64))
    got = blocks[-1].dstdata[dgl.NID].tolist(), [tuple(nodes.shape) for nodes in places]
    expected = [0], [(0,), (0,), (0, 3)]
    assert got == expected
    h = torch.ones(1, 4, requires_grad=True)
    loss = link.pair_loss(h, *places)
    loss.backward()
    got, expected = (loss.item(), h.grad.tolist()), (0.0, [[0.0] * 4])
    assert got == expected


H = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0], [8.0, 6.0]])


def entropy(cosine, target):
    """Return the binary cross-entropy of the score 10 * cosine - 5."""
    probability = 1 / (1 + math.exp(5 - 10 * cosine))
    return -math.log(probability if target else 1 - probability)


def test_loss_of_one_edge():
    """The cosines of the edge and of its two negatives are 0.6, 0.8 and 0."""
    loss = link.pair_loss(H, torch.tensor([0]), torch.tensor([1]), torch.tensor([[2, 3]]))
    got = loss.item()
    expected = pytest.approx((entropy(0.6, 1) + (entropy(0.8, 0) + entropy(0, 0)) / 2) / 2)
    assert got == expected


def test_loss_is_a_sum_over_edges():
    """Each edge has its negatives. The loop of train.py divides by the number of edges of all ranks."""
    src, dst, others = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 2]), torch.tensor([[2, 3], [3, 3], [0, 1]])
    cosines = [(0.6, 0.8, 0.0), (0.8, 0.6, 0.6), (0.6, 0.0, 0.8)]
    got = link.pair_loss(H, src, dst, others).item()
    expected = pytest.approx(sum((entropy(a, 1) + (entropy(b, 0) + entropy(c, 0)) / 2) / 2 for a, b, c in cosines))
    assert got == expected


def test_loss_does_not_depend_on_lengths():
    """Row 4 has ten times the length of row 2. Normalize the vectors."""
    edge = torch.tensor([0]), torch.tensor([4]), torch.tensor([[4, 3]])
    got = link.pair_loss(H, *edge).item()
    expected = pytest.approx((entropy(0.8, 1) + (entropy(0.8, 0) + entropy(0, 0)) / 2) / 2)
    assert got == expected


def test_every_node_of_a_pair_has_a_gradient():
    """The loss trains the vectors of sources, destinations and negatives. Node 3 is in no pair."""
    h = H.clone().requires_grad_()
    link.pair_loss(h, torch.tensor([0]), torch.tensor([1]), torch.tensor([[2, 4]])).backward()
    got, expected = (h.grad != 0).any(1).tolist(), [True, True, True, False, True]
    assert got == expected


def test_read(training):
    """Read the rows of the input nodes, once for each of them. The positions and blocks stay the same."""
    blocks, places = link.sample_edges(training, [3, 3], "uniform", 2, torch.arange(10))
    reads = []

    class Rows:
        def __getitem__(self, ids):
            reads.append(ids)
            return training.g.ndata["feat"][ids]

    task = SimpleNamespace(feat=Rows(), device=torch.device("cpu"))
    found, x, positions = link.LinkTask.read(task, (blocks, places))
    got = torch.equal(x, training.g.ndata["feat"][blocks[0].srcdata[dgl.NID]]), len(reads)
    expected = True, 1
    assert got == expected
    got = [nodes.tolist() for nodes in positions], [block.num_edges() for block in found]
    expected = [nodes.tolist() for nodes in places], [block.num_edges() for block in blocks]
    assert got == expected


def test_read_moves_everything_to_the_device():
    """Move blocks, rows and positions. Here, the device is called "meta", and only ``to`` accepts this name."""

    class Moved:
        def __init__(self, name, nodes=None):
            self.name, self.srcdata = name, {dgl.NID: nodes}

        def to(self, device, **_):
            return f"{self.name} on {device}"

    task = SimpleNamespace(feat={"nodes": Moved("rows")}, device="meta")
    places = Moved("src"), Moved("dst"), Moved("negatives")
    blocks, x, positions = link.LinkTask.read(task, ([Moved("block 0", "nodes"), Moved("block 1")], places))
    got = [*blocks, x, *positions]
    expected = [f"{name} on meta" for name in ("block 0", "block 1", "rows", "src", "dst", "negatives")]
    assert got == expected


@pytest.fixture(scope="module")
def config(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ring")
    dgl.distributed.partition_graph(graph, "ring", 1, str(folder))
    np.save(folder / "node_map.npy", ORIGINAL.numpy())
    return str(folder / "ring.json")


def exact_mrr(graph, state, side, candidates):
    """Return the MRR of the edges of a side, from the vectors of a model on the plain graph without held-out edges."""
    training = TrainingGraph(graph, ORIGINAL, 0.2)
    sides = training.sides(*graph.edges())
    model = link.GraphSAGE(2, 8, 8, dropout=0)
    model.load_state_dict(state)
    h = F.normalize(model.inference(dgl.remove_edges(graph, (sides > 0).nonzero().flatten()), graph.ndata["feat"]))
    values = []
    for u, v in torch.stack(graph.find_edges((sides == side).nonzero().flatten())).T.tolist():
        cosines = torch.stack([h[u] @ h[x] for x in candidates.tolist() if x not in (u, v)])
        values.append(
            1 / (1 + (cosines > h[u] @ h[v] + 1e-6).sum() + ((cosines - h[u] @ h[v]).abs() <= 1e-6).sum() / 2)
        )
    return torch.stack(values).mean().item()


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_and_exact_scores(graph, config, ranks):
    """The loop of train.py lowers the loss. Both scores are those of a plain graph without the held-out edges."""
    from train import fit

    options = {**link.OPTIONS, "num_epochs": 6, "batch_size": 40, "hidden": 8, "share": 0.2, "candidates": 20}
    options |= {"epoch_edges": 0, "lr": 0.05, "seed": 0, "cache": 10_000, "eval_every": 1, "checkpoint": "", "best": ""}

    def run(_rank, _size):
        dgl.distributed.initialize("no_such_file.txt")
        g = dgl.distributed.DistGraph("ring", part_config=config)
        task = link.LinkTask(g, SimpleNamespace(**options, part_config=config))
        pickle.dumps(task.sample)  # for sampler processes
        epochs = fit(task)
        state = {name: value.clone() for name, value in task.model.module.state_dict().items()}
        return epochs, state, task.candidates, len(split_edges(task.graph)["test"])

    found = fork(run, ranks, backend="gloo", threads=1, timeout=90)
    epochs, state, candidates, _ = found[0]
    got, expected = epochs[-1]["loss"] < 0.9 * epochs[0]["loss"], True
    assert got == expected
    got = [epochs[-1][name] for name in ("val_mrr", "test_mrr")]
    expected = [pytest.approx(exact_mrr(graph, state, side, candidates), abs=0.01) for side in (1, 2)]
    assert got == expected
    got, expected = "hit_rate" in epochs[-1], True
    assert got == expected
