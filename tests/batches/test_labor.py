"""LABOR: the same neighbours whoever draws them, means that are right on average, fewer nodes; as GraphBolt draws."""

import math
from types import SimpleNamespace

import pytest
import torch
from dgl import NID

from tutorial_lib.batches import neighbours
from tutorial_lib.batches.labor import ListsRequest, Variates, mixed, smallest, uniform
from tutorial_lib.batches.neighbours import NeighbourLists
from tutorial_lib.errors import InputError
from tutorial_lib.trainer.config import TrainConfig, check_sampler

N = 400


def lists_of_a_graph(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """indptr, neighbours (each once) of N nodes; some have none, some many."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 60, (N,), generator=generator)
    counts[:5] = torch.tensor([0, 1, 3, 4, 200])
    indptr = torch.zeros(N + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(counts, 0)
    return indptr, torch.cat([torch.randperm(N, generator=generator)[:count] for count in counts])


INDPTR, SOURCES = lists_of_a_graph()


def whole(nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = [SOURCES[INDPTR[node] : INDPTR[node + 1]] for node in nodes.tolist()]
    return torch.tensor([len(each) for each in found]), torch.cat(found)


@pytest.mark.parametrize("fanout", [1, 4, 10])
def test_each_list_gives_those_with_the_smallest_numbers(fanout):
    """Beside the obvious way: sort each list by itself."""
    variates = Variates.of(3, 7, 1)
    nodes = torch.randperm(N)
    counts, found = smallest(*whole(nodes), fanout, variates)
    for node, drawn in zip(nodes.tolist(), found.split(counts.tolist()), strict=True):
        here = SOURCES[INDPTR[node] : INDPTR[node + 1]]
        assert drawn.tolist() == here[torch.argsort(variates(here))][:fanout].tolist()


def test_all_neighbours_where_no_fan_out_limits():
    counts, found = smallest(*whole(torch.arange(N)), -1, Variates(1))
    assert torch.equal(counts, INDPTR.diff())
    assert torch.equal(found, SOURCES)


def test_numbers_are_uniform_and_differ_by_seed_hop_and_batch():
    nodes = torch.arange(200_000)
    numbers = uniform(5, nodes)
    assert 0 < float(numbers.min()) < 1e-4
    assert 1 - 1e-4 < float(numbers.max()) < 1
    share = torch.histc(numbers, 50, 0, 1) / len(nodes)
    assert float((share - 0.02).abs().max()) < 0.002  # six standard deviations
    others = [Variates.of(*which) for which in ((5, 0, 0), (6, 0, 0), (5, 1, 0), (5, 0, 1))]
    drawn = torch.stack([variates(nodes) for variates in others])
    related = torch.corrcoef(drawn) - torch.eye(4)
    assert float(related.abs().max()) < 0.015
    assert mixed(7, 1) == int(mixed(torch.tensor([7]), 1))


def test_the_mean_is_right_on_average():
    """Against the sum over all neighbours, for lists of every length; and its variance is that of plain draws."""
    generator = torch.Generator().manual_seed(0)
    rows, fanout, times = torch.randn(N, dtype=torch.float64, generator=generator), 4, 600
    counts, sources = whole(torch.arange(N))
    some = (counts > 0).nonzero().flatten()
    exact = torch.segment_reduce(rows[sources], "mean", lengths=counts)[some]
    spread = torch.segment_reduce(rows[sources] ** 2, "mean", lengths=counts)[some] - exact**2  # of one neighbour
    found = []
    for batch in range(times):
        taken, drawn = smallest(counts, sources, fanout, Variates.of(11, batch, 0))
        found.append(torch.segment_reduce(rows[drawn], "mean", lengths=taken)[some])
    means = torch.stack(found)
    long = counts[some].double()
    expected = (spread / fanout * (long - fanout) / (long - 1).clamp(min=1)).clamp(min=0)  # without repetition
    error = (means.mean(0) - exact).abs()
    assert bool((error <= 5 * torch.sqrt(expected / times) + 1e-12).all())  # five standard deviations of the average
    drawn_from = long > fanout
    assert float((means.var(0)[drawn_from] / expected[drawn_from]).mean()) == pytest.approx(1, abs=0.05)


def test_as_graphbolt_draws():
    """In distribution: how many nodes a layer reaches, and how often each neighbour of one list is among the drawn."""
    gb = pytest.importorskip("dgl.graphbolt")
    graph = gb.fused_csc_sampling_graph(INDPTR, SOURCES.int())
    nodes, fanout, times = torch.arange(50, 350), 5, 400
    gb.seed(0)
    theirs = [graph.sample_layer_neighbors(nodes.int(), torch.tensor([fanout])).sampled_csc for _ in range(times)]
    ours = [smallest(*whole(nodes), fanout, Variates.of(2, batch, 0)) for batch in range(times)]
    assert all(torch.equal(sampled.indptr.diff(), counts) for sampled, (counts, _) in zip(theirs, ours, strict=True))
    reached = [[len(sampled.indices.unique()) for sampled in theirs], [len(found.unique()) for _, found in ours]]
    sizes = torch.tensor(reached, dtype=torch.float64)
    error = math.sqrt(float(sizes.var(1).sum()) / times)
    assert abs(float(sizes[0].mean() - sizes[1].mean())) < 5 * error
    plain = graph.sample_neighbors(nodes.int(), torch.tensor([fanout])).sampled_csc.indices
    assert float(sizes[1].mean()) < 0.8 * len(plain.unique())


class Parts:
    """The lists, cut into pieces that servers hold; the first of them is this trainer's."""

    def __init__(self, parts: int) -> None:
        self.firsts = torch.linspace(0, N, parts + 1).long()
        self.partid = 0

    def partid2nids(self, part: int) -> torch.Tensor:
        return torch.arange(int(self.firsts[part]), int(self.firsts[part + 1]))

    def nid2partid(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(ids, self.firsts[1:], right=True)

    def server(self, part: int) -> SimpleNamespace:
        own = self.partid2nids(part)
        first, last = INDPTR[own[0]], INDPTR[own[-1] + 1]
        book = SimpleNamespace(
            partid=part, partid2nids=lambda _part: own, nid2localnid=lambda ids, _part: ids - int(own[0])
        )
        # Local ids: this part's nodes first, then all the others.
        others = torch.ones(N, dtype=torch.bool)
        others[own] = False
        ids = torch.cat([own, others.nonzero().flatten()])
        place = torch.argsort(ids)
        csc = {"csc_indptr": INDPTR[own[0] : own[-1] + 2] - first, "indices": place[SOURCES[first:last]]}
        return SimpleNamespace(partition_book=book, graph=SimpleNamespace(**csc, node_attributes={NID: ids}))


def test_the_same_batch_from_one_two_and_four_parts(monkeypatch):
    """Whoever has the lists: this trainer, or servers, whose requests travel as what DGL pickles."""
    nodes = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:150].int()
    drawn = []
    for parts in (1, 2, 4):
        book = Parts(parts)
        servers = [book.server(part) for part in range(parts)]

        def ask(_book, ids, request, book=book):
            of = book.nid2partid(ids)
            chosen = [(of == part).nonzero().flatten() for part in of.unique().tolist()]
            sent = [(int(of[positions[0]]), request(ids[positions])) for positions in chosen]
            return sent, chosen

        def answers_to(asked, _what, servers=servers):
            copies = [(part, ListsRequest.__new__(ListsRequest), request) for part, request in asked]
            for _, copy, request in copies:
                copy.__setstate__(request.__getstate__())
            return [copy.process_request(servers[part]) for part, copy, _ in copies]

        monkeypatch.setattr(neighbours, "ask", ask)
        monkeypatch.setattr(neighbours, "answers_to", answers_to)
        graph = SimpleNamespace(
            get_partition_book=lambda book=book: book, num_nodes=lambda: N, local_partition=servers[0].graph
        )
        lists = NeighbourLists(graph, 0, 2)
        assert int((lists.list_of(torch.arange(N)) >= 0).sum()) == N // parts
        drawn.append([lists.draw_alike(nodes, fanout, Variates.of(9, 4, 1)) for fanout in (6, -1)])
    for other in drawn[1:]:
        for one, another in zip(drawn[0], other, strict=True):
            assert torch.equal(one.indptr, another.indptr)
            assert torch.equal(one.sources, another.sources)


def test_dependent_batches_move_slowly():
    """Neighbouring batches share most of what they draw, those further apart less; each by itself is uniform."""
    counts, sources = whole(torch.arange(N))
    found = [set(smallest(counts, sources, 5, Variates.of(1, batch, 0, 8))[1].tolist()) for batch in (0, 1, 4, 8)]
    shared = [len(found[0] & other) / len(found[0]) for other in found[1:]]
    alone = [set(smallest(counts, sources, 5, Variates.of(1, batch, 0))[1].tolist()) for batch in (0, 1)]
    assert shared[0] > shared[1] > shared[2]
    assert shared[2] == pytest.approx(len(alone[0] & alone[1]) / len(alone[0]), abs=0.15)
    numbers = Variates.of(1, 3, 0, 8)(torch.arange(200_000))
    assert float((torch.histc(numbers, 50, 0, 1) / 200_000 - 0.02).abs().max()) < 0.002


@pytest.mark.parametrize(
    ("changed", "samplers", "single", "message"),
    [
        ({"sampler": "lab"}, 0, False, "no --sampler 'lab'"),
        ({"sampler": "labor", "task": "link"}, 0, False, "which this run does not use"),
        ({"sampler": "labor"}, 1, False, "which this run does not use"),
        ({"sampler": "labor", "loader": "dgl"}, 0, False, "which this run does not use"),
        ({"sampler": "labor"}, 0, True, "which this run does not use"),
        ({"batch_dependency": 4}, 0, False, "for --sampler labor"),
    ],
)
def test_where_it_cannot_be(changed, samplers, single, message):
    with pytest.raises(InputError, match=message):
        check_sampler(TrainConfig(**changed), samplers, single_process=single)
    check_sampler(TrainConfig(sampler="labor", batch_dependency=4), 0, single_process=False)
