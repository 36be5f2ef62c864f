"""Tests of ``held_out.py``, on a graph of 30 nodes. Some start one or two real ranks, or replace functions of DGL."""

import pickle
from types import SimpleNamespace

import dgl
import pytest
import torch
import torch.distributed as dist

import held_out
from held_out import TrainingGraph
from support.processes import fork

ORIGINAL = torch.arange(30).flip(0) + 100  # original ID of each node


@pytest.fixture(scope="module")
def graph():
    """Each node is connected with the twelve nodes around it, in both directions. The edges are in random order."""
    u = torch.arange(30).repeat_interleave(6)
    v = (u + torch.arange(1, 7).repeat(30)) % 30
    order = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    return dgl.graph((torch.cat([u, v])[order], torch.cat([v, u])[order]), num_nodes=30)


def pairs(src, dst):
    """Return a set with the two nodes of each edge, the smaller one first."""
    return {(min(u, v), max(u, v)) for u, v in zip(src.tolist(), dst.tolist(), strict=True)}


def pairs_on_side(graph, share, *sides):
    """Return the pairs of nodes of the edges on some sides, computed from their original IDs."""
    found = set()
    for u, v in pairs(*graph.edges()):
        low, high = sorted([int(ORIGINAL[u]), int(ORIGINAL[v])])
        number = held_out.hash_pairs(torch.tensor([low]), torch.tensor([high])).item()
        if (2 if number < share else 1 if number < 2 * share else 0) in sides:
            found.add((u, v))
    return found


def test_sides_of_some_edges():
    """The hash numbers of the edges from 0 to 6, 10, 12, 20, 2 and 8 are 0.36, 0.02, 0.01, 0.32, 0.93 and 0.50."""
    u, v = torch.zeros(6, dtype=torch.int64), torch.tensor([6, 10, 12, 20, 2, 8])
    got = held_out.choose_sides(u, v, 0.2).tolist(), held_out.choose_sides(u, v, 0.1).tolist()
    expected = [1, 2, 2, 1, 0, 0], [0, 2, 2, 0, 0, 0]
    assert got == expected
    got, expected = held_out.choose_sides(u, v, 0.2).dtype, torch.uint8
    assert got == expected


def test_both_directions_have_the_same_side():
    """Hash the smaller ID first."""
    u, v = torch.randint(1000, (2, 5000), generator=torch.Generator().manual_seed(1))
    got, expected = (held_out.choose_sides(v, u, 0.1) != held_out.choose_sides(u, v, 0.1)).sum().item(), 0
    assert got == expected


def test_share_of_each_side():
    """About ``share`` of the edges are test edges, and equally many are validation edges."""
    u, v = torch.randint(10**9, (2, 100_000), generator=torch.Generator().manual_seed(2))
    got = torch.bincount(held_out.choose_sides(u, v, 0.1).long(), minlength=3) / 100_000
    expected = torch.tensor([0.8, 0.1, 0.1])
    assert torch.allclose(got, expected, atol=0.005)


def test_number_of_a_pair():
    """Seven nodes have 28 pairs, with self loops. Both directions have one number."""
    u, v = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
    numbers = held_out.number_pairs(u, v, 7)
    got = len(numbers.unique()), torch.equal(numbers, held_out.number_pairs(v, u, 7)), numbers.dtype
    expected = 28, True, torch.int64
    assert got == expected
    u, v = torch.cartesian_prod(torch.arange(3), torch.arange(2000)).T
    got, expected = len(held_out.number_pairs(u, v, 2000).unique()), 3 * 2000 - 3  # (0, 1), (0, 2), (1, 2) occur twice
    assert got == expected


def test_samples_without_held_out_edges(graph):
    """With all neighbors, the sample contains each training edge in both directions, and no other edge."""
    known = TrainingGraph(graph, ORIGINAL, 0.2)
    frontier = known.sample_neighbors(torch.arange(30), -1)
    got, expected = sorted(pairs(*frontier.edges())), sorted(pairs_on_side(graph, 0.2, 0))
    assert got == expected
    got, expected = frontier.num_edges(), 2 * len(expected)
    assert got == expected


def test_samples_without_excluded_edges(graph):
    """Remove the excluded edges in both directions, and also the held-out edges."""
    training = sorted(pairs_on_side(graph, 0.2, 0))
    batch = torch.tensor(training[:10])
    known = TrainingGraph(graph, ORIGINAL, 0.2)
    frontier = known.sample_neighbors(torch.arange(30), -1, exclude_edges=(batch[:, 1], batch[:, 0]))
    got, expected = sorted(pairs(*frontier.edges())), training[10:]
    assert got == expected
    got, expected = frontier.num_edges(), 2 * len(expected)
    assert got == expected


def test_samples_keep_edge_ids_and_options(graph):
    """``dgl.remove_edges`` keeps ``edata[dgl.EID]``. Pass fanout and options on to the graph."""
    known = TrainingGraph(graph, ORIGINAL, 0.2)
    frontier = known.sample_neighbors(torch.tensor([3, 4]), 5, edge_dir="in", replace=False)
    src, dst = graph.find_edges(frontier.edata[dgl.EID])
    got = torch.stack(frontier.edges())
    expected = torch.stack([src, dst])
    assert torch.equal(got, expected)
    got, expected = bool(frontier.in_degrees().max() <= 5), True
    assert got == expected
    got = known.sample_neighbors(torch.tensor([3]), -1, edge_dir="out").edges()[0].unique().tolist()
    expected = [3]
    assert got == expected


def test_blocks_of_a_sampler(graph):
    """DGL's samplers accept the graph. DGL can send it to a sampler process."""
    known = pickle.loads(pickle.dumps(TrainingGraph(graph, ORIGINAL, 0.2)))
    _, _, blocks = dgl.dataloading.MultiLayerNeighborSampler([-1, -1]).sample_blocks(known, torch.arange(30))
    training = 2 * len(pairs_on_side(graph, 0.2, 0))
    got, expected = [block.num_edges() for block in blocks], [training, training]
    assert got == expected


@pytest.fixture(scope="module")
def config(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ring")
    dgl.distributed.partition_graph(graph, "ring", 1, str(folder))
    return str(folder / "ring.json")


@pytest.mark.parametrize("ranks", [1, 2])
def test_split_on_ranks_of_one_machine(graph, config, ranks):
    """Without servers, the ranks share the edges of each side. Their IDs are those of the DistGraph."""

    def split(_rank, _size):
        dgl.distributed.initialize("no_such_file.txt")
        g = dgl.distributed.DistGraph("ring", part_config=config)
        shares = held_out.split_edges(TrainingGraph(g, ORIGINAL, 0.2))
        return {name: (ids.tolist(), torch.stack(g.find_edges(ids)).tolist()) for name, ids in shares.items()}

    found = fork(split, ranks, backend="gloo", threads=1, timeout=60)
    for side, name in enumerate(("train", "val", "test")):
        of_all = torch.cat([torch.tensor(rank[name][1]).long() for rank in found], dim=1)
        got = sorted(map(tuple, of_all.T.tolist()))
        expected = sorted([*(both := pairs_on_side(graph, 0.2, side)), *((v, u) for u, v in both)])
        assert got == expected
        sizes = [len(rank[name][0]) for rank in found]
        got, expected = max(sizes) - min(sizes) <= 1, True
        assert got == expected


def test_split_on_machines(monkeypatch):
    """Write only entries of this machine, wait, and then call edge_split. Keep all edges that it returns."""
    log, own = [], torch.tensor([3, 4, 5, 6])

    class Mask:
        def __init__(self, shape, dtype, name=None, part_policy=None, **_):
            self.about = (tuple(shape), dtype, name, part_policy)

        def __setitem__(self, ids, values):
            log.append((self.about, ids.tolist(), values.int().tolist()))

    def edge_split(mask, partition_book=None, force_even=True, **_):
        log.append((mask.about[2], partition_book in (None, book), force_even))
        return torch.arange(5)

    of_own = torch.tensor([0, 2, 1, 0], dtype=torch.uint8)
    book = SimpleNamespace(partid=1, partid2eids=lambda part: own if part == 1 else torch.arange(3))
    graph = SimpleNamespace(
        get_partition_book=lambda: book,
        get_edge_partition_policy=lambda etype: f"policy of {etype}",
        num_edges=lambda: 7,
        find_edges=lambda ids: (ids + 10, ids + 20),
        sides=lambda src, dst: of_own if (src[0], dst[0]) == (13, 23) else None,
    )
    for module in (held_out, dgl.distributed):
        monkeypatch.setattr(module, "DistTensor", Mask)
        monkeypatch.setattr(module, "edge_split", edge_split)
    monkeypatch.setenv("DGL_DIST_MODE", "distributed")
    monkeypatch.setattr(dist, "barrier", lambda: log.append("barrier"))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    shares = {name: ids.tolist() for name, ids in held_out.split_edges(graph).items()}
    got, expected = shares, {name: [0, 1, 2, 3, 4] for name in ("train", "val", "test")}
    assert got == expected
    for name, values, even in (
        ("train", [1, 0, 0, 1], True),
        ("val", [0, 0, 1, 0], False),
        ("test", [0, 1, 0, 0], False),
    ):
        wrote = (((7,), torch.uint8, f"is-{name}", "policy of _E"), own.tolist(), values)
        split = (f"is-{name}", True, even)
        got = [log.count(wrote), log.count(split)]
        expected = [1, 1]
        assert got == expected
        got, expected = "barrier" in log[log.index(wrote) : log.index(split)], True
        assert got == expected
