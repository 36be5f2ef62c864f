"""Batches from the pipeline: the same answers as from DGL's loader, whatever is kept and however it is drawn."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import dgl
import pytest
import torch
import torch.nn.functional as F
from row_support import Book, Rows, Wire

from tutorial_lib.batches import neighbor_sampler, prefetch, rpc
from tutorial_lib.batches.feature_cache import NEVER, FeatureCache
from tutorial_lib.batches.neighbor_sampler import Adjacency, Neighbors, NeighborSampler, append_lists, most_used
from tutorial_lib.batches.pipeline import Pipeline, PipelineLoader
from tutorial_lib.batches.rpc import NeighborsRequest, NeighborsResponse, fetch_neighbors, id_type, ranges
from tutorial_lib.cluster.coordinator import Coordinator
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.spec import write_ip_config
from tutorial_lib.errors import InputError, WaitedTooLong
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.models.sage import FirstLayer, GraphSAGE
from tutorial_lib.trainer.config import check_loader

PROGRAMS = Path(__file__).parents[1] / "programs"
TRAINER = PROGRAMS / "pipeline_trainer.py"


@pytest.mark.parametrize("where", ["shared memory", "elsewhere"])
@pytest.mark.parametrize("room", [0, 1, 3, 100])
def test_rows_are_those_of_the_tensor(monkeypatch, tmp_path, where, room):
    generator = torch.Generator().manual_seed(room)
    everything = torch.randn(60, 100, generator=generator)
    tensor = Rows(everything, 20, 45, shared=tmp_path / "rows" if where == "shared memory" else None)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 45), budget=room * 400)
    assert (table.used, table.asked, table.hits, table.look_ahead, table.most_ahead) == (0, 0, 0, 0, 32 * (room < 35))
    for _ in range(6):
        ids = torch.randint(60, (30,), generator=generator, dtype=torch.int32)
        assert torch.equal(table[ids], everything[ids.long()])
    assert table.used == min(room, 35)
    remote = [node for asked in tensor.asked for node in asked]
    assert all(not 20 <= node < 45 for node in remote)
    assert table.asked - table.hits == len(remote)
    if room == 100:
        assert len(remote) == len(set(remote))  # nothing is asked for twice


def fewest_pulls(batches, room):
    """Belady's rule on sets: of the rows that are here, the one that is needed last goes."""
    kept, pulls = set(), 0
    for now, batch in enumerate(batches):
        pulls += len(batch - kept)
        later = {
            row: min((k for k in range(now + 1, len(batches)) if row in batches[k]), default=10**9)
            for row in kept | batch
        }
        kept = set(sorted(later, key=lambda row: (later[row], row))[:room])
    return pulls


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("room", [1, 7, 20, 34])
def test_no_cache_of_its_size_pulls_fewer_rows(monkeypatch, room, early):
    """With every batch announced; each row is the tensor's, whatever has moved, and what the next batch has asked."""
    generator = torch.Generator().manual_seed(room)
    everything = torch.randn(60, 5, generator=generator)
    popular = torch.rand(60, generator=generator) ** 3 + 0.02
    batches = [torch.multinomial(popular, 24, generator=generator).int() for _ in range(40)]
    tensor = Rows(everything, 20, 25)
    wire = Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 25), budget=room * 20, most_ahead=40)
    for ids in batches:
        table.announce(ids)
    on_their_way = []
    for number, ids in enumerate(batches):
        if early and number == 0:
            table.request(ids)
        if early and number + 1 < len(batches):
            table.request(batches[number + 1])
        slots = table.slots(ids)
        on_their_way.append(len(wire.waiting))
        assert torch.equal(table.read(slots), everything[ids.long()])
    remote = [{node for node in ids.tolist() if not 20 <= node < 25} for ids in batches]
    assert sum(map(len, tensor.asked)) == fewest_pulls(remote, room)
    assert (max(on_their_way), on_their_way[-1]) == (2 * early, 0)  # a question to each of two machines


@pytest.mark.parametrize("period", [2, 3, 4])
def test_as_many_batches_are_announced_as_tell_when_each_kept_row_is_needed(monkeypatch, period):
    """Each batch comes again after so many, and there is room for them."""
    everything = torch.randn(60, 5)
    tensor = Rows(everything, 0, 10)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(0, 10), budget=10 * period * 20)
    batches = (torch.arange(10, 20) + 10 * (number % period) for number in range(30))
    waiting: deque[torch.Tensor] = deque()
    seen = []
    while True:
        while len(waiting) <= table.look_ahead and (batch := next(batches, None)) is not None:
            table.announce(batch)
            waiting.append(batch)
        if not waiting:
            break
        assert torch.equal(table[waiting[0]], everything[waiting.popleft()])
        seen.append(table.look_ahead)
    assert (len(seen), seen[0], seen[10:]) == (30, 0, [period - 1] * 20)


def test_fewer_batches_are_announced_when_fewer_would_tell():
    table = FeatureCache(Rows(torch.randn(60, 5), 0, 10), Book(0, 10), budget=200)
    table.look_ahead = 3
    table._announced.extend([(torch.empty(0), 0)] * 4)
    for last, expected in [(NEVER, 4), (NEVER, 4), (2, 4), (1, 3), (0, 2), (0, 1), (0, 0), (0, 0)]:
        table._adapt(last)
        assert table.look_ahead == expected


@pytest.mark.parametrize("early", [True, False])
def test_another_call_than_the_one_that_was_announced(monkeypatch, early):
    everything = torch.randn(60, 5)
    tensor = Rows(everything, 20, 25)
    wire = Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(20, 25), budget=10 * 20)
    for first in (0, 30, 40):
        table.announce(torch.arange(first, first + 8))
        if early:
            table.request(torch.arange(first, first + 8))
        other = torch.arange(first + 4, first + 20)
        assert torch.equal(table[other], everything[other])
    table.announce(torch.arange(12))
    table.request(torch.arange(12))
    table.cancel()
    assert not wire.waiting


def test_own_rows_are_not_copied(tmp_path):
    tensor = Rows(torch.zeros(50, 100), 10, 40, shared=tmp_path / "rows")
    table = FeatureCache(tensor, Book(10, 40), budget=4000)
    tensor.local_partition[7] = 3.0
    assert torch.equal(table[torch.tensor([17])], torch.full((1, 100), 3.0))


@pytest.mark.parametrize("own", [(0, 0), (0, 60), (20, 25)])
def test_means_of_lists_of_slots(monkeypatch, own):
    """Lists with own rows, with rows of other machines, with both and with none, as embedding_bag computes them."""
    everything = torch.randn(60, 5)
    tensor = Rows(everything, *own)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(*own), budget=10 * 20)
    ids = torch.randint(60, (40,), dtype=torch.int32)
    ids[:10], ids[10:20] = 22, 50
    indptr = torch.tensor([0, 0, 5, 10, 15, 15, 30, 40, 40], dtype=torch.int32)
    expected = F.embedding_bag(ids, everything, indptr, mode="mean", include_last_offset=True)
    assert torch.allclose(table.mean(table.slots(ids), indptr), expected, atol=1e-6)


def test_a_part_without_nodes(monkeypatch):
    everything = torch.randn(9, 4)
    tensor = Rows(everything, 0, 0)
    Wire(monkeypatch, tensor)
    table = FeatureCache(tensor, Book(0, 0), budget=1000)
    assert (table.capacity, table.row_bytes) == (9, 16)
    assert torch.equal(table[torch.tensor([3, 8, 3])], everything[[3, 8, 3]])


def test_ranges_are_laid_end_to_end():
    assert ranges(torch.tensor([5, 0, 9]), torch.tensor([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)).tolist() == []


def test_ids_are_as_narrow_as_the_largest_of_them():
    assert [id_type(largest) for largest in (0, 2**31 - 1, 2**31)] == [torch.int32, torch.int32, torch.int64]


class PartBook:
    """Part 0 has nodes 0 to 2, part 1 the others."""

    partid = 0

    def partid2nids(self, _part: int) -> torch.Tensor:
        return torch.arange(3)

    def nid2partid(self, ids: torch.Tensor) -> torch.Tensor:
        return (ids > 2).long()

    def nid2localnid(self, ids: torch.Tensor, _part: int) -> torch.Tensor:
        return ids


# In-neighbours: of nodes 0 to 2, which are here, and of 3 and 4, which another machine has.
NEIGHBOURS = {0: [3, 4], 1: [], 2: [4, 0, 1], 3: [1, 5], 4: [2]}


def part_with_halo(*outer: int) -> dgl.DGLGraph:
    """Nodes 0 to 2 with their edges; behind them the outer nodes, by the ids that they have in the whole graph."""
    places = {node: place for place, node in enumerate([0, 1, 2, *outer])}
    edges = [(places[source], node) for node in range(3) for source in NEIGHBOURS[node]]
    part = dgl.graph(tuple(torch.tensor(ends) for ends in zip(*edges, strict=True)), num_nodes=len(places))
    part.ndata[dgl.NID] = torch.tensor(list(places))
    return part


@pytest.mark.parametrize("far", [0, 2**31])
def test_a_server_answers_with_the_lists_of_its_part(far):
    """Ids that fit into 32 bits are sent in them; others whole."""
    part = part_with_halo(4, 3)
    part.ndata[dgl.NID][3:] += far
    answer = NeighborsRequest(torch.tensor([2, 1, 0])).process_request(
        SimpleNamespace(partition_book=PartBook(), graph=part)
    )
    assert answer.counts.tolist() == [3, 0, 2]
    given = [sorted(each.tolist()) for each in answer.sources.split(answer.counts.tolist())]
    assert given == [[0, 1, 4 + far], [], [3 + far, 4 + far]]
    assert answer.sources.dtype == (torch.int64 if far else torch.int32)


def test_lists_of_two_machines_come_in_the_order_of_the_nodes(monkeypatch):
    lists = {3: [1, 5], 0: [3, 4], 4: [2], 1: [], 2: [4, 0, 1]}
    sent: list[list[int]] = []

    def send(requests):
        sent.extend(request.ids.tolist() for _part, request in requests)
        return {number: number for number in range(len(requests))}

    def answers(asked, _what):
        found = [[lists[node] for node in sent[number]] for number in asked]
        return [
            NeighborsResponse(torch.tensor(list(chain(*each))), torch.tensor([len(one) for one in each]))
            for each in found
        ]

    monkeypatch.setattr(rpc.rpc, "send_requests_to_machine", send)
    monkeypatch.setattr(rpc, "receive", answers)
    counts, found = fetch_neighbors(PartBook(), torch.tensor(list(lists)))
    assert sent == [[0, 1, 2], [3, 4]]
    assert [each.tolist() for each in found.split(counts.tolist())] == list(lists.values())


def test_neighbours_are_drawn_here_and_by_the_machine_that_has_the_node(monkeypatch):
    """Node 4's list is kept, as far as the memory goes; node 3's is not, so its own machine draws."""
    asked: list[list[int]] = []

    def ask(_book, ids, request):
        asked.append(request(ids).seed_nodes.tolist())
        return {0: 0}, [torch.arange(len(ids))]

    def answers_to(_asked, _what):
        edges = [(source, node) for node in asked[-1] for source in NEIGHBOURS[node]]
        source, node = (torch.tensor(ends) for ends in zip(*edges, strict=True))
        return [SimpleNamespace(global_src=source, global_dst=node)]

    monkeypatch.setattr(neighbor_sampler, "request", ask)
    monkeypatch.setattr(neighbor_sampler, "receive", answers_to)
    monkeypatch.setattr(neighbor_sampler, "fetch_neighbors", lambda _book, ids: answer_lists(ids))
    graph = SimpleNamespace(get_partition_book=PartBook, num_nodes=lambda: 6, local_partition=part_with_halo(4, 3))
    lists = NeighborSampler(graph, 4, 2)
    assert (lists.remote_nodes, lists.remote_bytes, lists.dtype) == (1, 4, torch.int32)
    assert lists.list_of(torch.arange(6)).tolist() == [0, 1, 2, -1, 3, -1]
    for nodes, remote in [([2, 1, 0, 4], []), ([3, 2, 1], [[3]]), ([1, 0, 3, 4], [[3]])]:
        asked.clear()
        drawn = lists.sample(torch.tensor(nodes, dtype=torch.int32), -1)
        assert asked == remote
        ends = drawn.indptr.tolist()
        found = [sorted(drawn.sources[begin:end].tolist()) for begin, end in pairwise(ends)]
        assert found == [sorted(NEIGHBOURS[node]) for node in nodes]
        few = lists.sample(torch.tensor(nodes, dtype=torch.int32), 1)
        assert few.indptr.diff().tolist() == [
            len(NEIGHBOURS[node]) if node == 3 else min(1, len(NEIGHBOURS[node])) for node in nodes
        ]
    whole = lists.all_neighbors(torch.tensor([2, 4]))
    assert (whole.indptr.tolist(), sorted(whole.sources[:3].tolist()), whole.sources[3:].tolist()) == (
        [0, 3, 4],
        [0, 1, 4],
        [2],
    )


def answer_lists(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = [NEIGHBOURS[node] for node in ids.tolist()]
    return torch.tensor([len(each) for each in found]), torch.tensor([each for some in found for each in some])


def test_lists_are_kept_for_the_most_used_nodes_within_the_budget():
    """This part has nodes 0 to 3. Node 5 has three edges into it, node 4 one; node 6 is a neighbour of node 5."""
    lists = {4: [0, 5], 5: [0, 6, 1], 6: [5]}

    def answer(ids):
        found = [lists[node] for node in ids.tolist()]
        return torch.tensor([len(each) for each in found]), torch.tensor([each for some in found for each in some])

    own = torch.tensor([5, 5, 4, 5, 1], dtype=torch.int32)
    indptr = torch.tensor([0, 2, 3, 4, 5])
    for budget, rounds, expected in [(0, 2, []), (12, 2, [5]), (19, 2, [5]), (20, 1, [5, 4]), (100, 2, [5, 4, 6])]:
        kept = most_used(answer, range(4), own, rounds, budget)
        assert [node for ids, _, _ in kept for node in ids.tolist()] == expected
        assert sum(len(found) for _, _, found in kept) == sum(len(lists[node]) for node in expected)
        others, merged_indptr, sources = append_lists(indptr, own, kept)
        assert others.tolist() == sorted(expected)
        for number, node in enumerate([0, 1, 2, 3, *others.tolist()]):
            found = sources[merged_indptr[number] : merged_indptr[number + 1]].tolist()
            assert found == (lists[node] if node in expected else own[indptr[node] : indptr[node + 1]].tolist())


def test_eight_bytes_for_each_node_of_the_whole_graph():
    """All else that a trainer keeps grows with its own part and with its cache."""
    n = 10**6

    graph = SimpleNamespace(get_partition_book=PartBook, num_nodes=lambda: n, local_partition=part_with_halo(4, 3))
    lists = NeighborSampler(graph, 0, 2)
    features = Rows(torch.zeros(n, 1), 0, 3)
    table = FeatureCache(features, lists.book, 4000, scratch=lists.scratch)
    tensors = [*vars(lists).items(), *vars(table).items()]
    sizes = {name: value.nbytes for name, value in tensors if isinstance(value, torch.Tensor) and name != "rows"}
    assert sizes["scratch"] == sizes["_scratch"] == sizes["slot_of"] == 4 * n  # the first two are one
    assert sum(sizes.values()) - sizes["_scratch"] < 8 * n + 20_000


def test_nodes_of_a_hop_are_numbered_destinations_first():
    lists = NeighborSampler.__new__(NeighborSampler)
    lists.scratch = torch.full((10,), -1, dtype=torch.int32)
    nodes = torch.tensor([7, 2], dtype=torch.int32)
    drawn = Neighbors(torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([9, 2, 4, 9, 7], dtype=torch.int32))
    every, indices = lists.compact(drawn, nodes)
    assert every.tolist() == [7, 2, 4, 9]
    assert every[indices.long()].tolist() == drawn.sources.tolist()
    assert (lists.scratch == -1).all()


class OwnLists(Adjacency):
    """All lists of a graph of 60 nodes are here."""

    def __init__(self) -> None:
        counts = torch.randint(3, 9, (60,), generator=torch.Generator().manual_seed(1))
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        sources = torch.cat([torch.randperm(60, generator=torch.Generator().manual_seed(k))[:n] for k, n in
                             enumerate(counts.tolist())]).int()  # fmt: skip
        super().__init__(indptr, sources, 60)
        self.sample = self.sample_lists


def test_what_is_drawn_depends_on_the_seed_and_not_on_what_is_pulled(monkeypatch):
    """Which server is asked for rows is drawn, too; who has all rows asks for none."""
    features = torch.randn(60, 5)
    drawn = []
    for room in (0, 60):
        tensor = Rows(features, 20, 25)
        wire = Wire(monkeypatch, tensor)
        lists = OwnLists()

        def send(requests, wire=wire, lists=lists):
            lists.sample_lists(torch.arange(60), 2)
            return wire.send(requests)

        monkeypatch.setattr(rpc.rpc, "send_requests_to_machine", send)  # DGL uses one generator
        pipeline = Pipeline(lists, FeatureCache(tensor, Book(20, 25), room * 20), torch.arange(60))
        for seed in (3, 3, 4):
            loader = PipelineLoader(pipeline, torch.arange(0, 60, 2), [3, 2], 8, shuffle=True, seed=seed)
            found = [batch for _step, batch in loader.batches(0)]
            (last,) = (batch for _step, batch in loader.batches(0, start=len(found) - 1))
            assert torch.equal(last.inputs.mean, found[-1].inputs.mean)
            drawn.append(torch.cat([batch.inputs.mean for batch in found]))
            for batch in found:
                assert torch.equal(batch.labels, batch.seeds)
                assert torch.equal(batch.inputs.own, features[batch.input_nodes.long()])
                assert all(0 < seconds < 60 for _start, seconds in batch.background.values())
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 2
    assert all(torch.equal(drawn[0], drawn[k]) for k in (1, 3, 4))


@pytest.mark.parametrize("room", [0, 12, 60])
def test_an_iteration_that_was_left_disturbs_no_other(monkeypatch, room):
    """Neither when it goes on nor when it ends; every row is its node's."""
    features = torch.randn(60, 5)
    tensor = Rows(features, 20, 25)
    wire = Wire(monkeypatch, tensor)
    pipeline = Pipeline(OwnLists(), FeatureCache(tensor, Book(20, 25), room * 20), torch.arange(60))
    loader = PipelineLoader(pipeline, torch.arange(60), [3, 2], 8)
    first, second = loader.batches(0), loader.batches(1)
    batches = [next(first), next(second), next(second), next(first), next(second)]
    first.close()
    batches += list(second)
    for _step, batch in batches:
        assert torch.equal(batch.inputs.own, features[batch.input_nodes.long()])
    third = loader.batches(2)
    next(third)
    third.close()
    assert not wire.waiting


def test_the_first_layer_with_the_mean_taken():
    torch.manual_seed(0)
    block = dgl.create_block((torch.tensor([0, 3, 4, 4]), torch.tensor([0, 0, 1, 0])), num_src_nodes=5, num_dst_nodes=3)
    x = torch.randn(5, 6)
    model = GraphSAGE(6, 8, 4, 1, 0.0)
    mean = torch.stack([(x[0] + x[3] + x[4]) / 3, x[4], torch.zeros(6)])
    assert torch.allclose(model([block], x), model([], FirstLayer(x[:3], mean)), atol=1e-6)


def test_the_next_items_are_made_in_the_meantime():
    made = []

    def items():
        for number in range(5):
            made.append((number, threading.current_thread().name))
            yield number

    found = prefetch.prefetch(items, 2, "an item")
    assert next(found) == 0
    prefetch.sampling_thread().submit(lambda: None).result(timeout=10)  # after what the thread has to do by now
    assert [number for number, _ in made] == [0, 1, 2]
    assert list(found) == [1, 2, 3, 4]
    assert len({name for _, name in made}) == 1
    assert made[0][1] != threading.current_thread().name


def test_nothing_is_made_in_the_meantime():
    made = []
    found = prefetch.prefetch(lambda: (made.append(number) or number for number in range(3)), 0, "an item")
    assert next(found) == 0
    prefetch.sampling_thread().submit(lambda: None).result(timeout=10)
    assert made == [0]
    assert list(found) == [1, 2]


def test_an_error_comes_in_its_place_and_the_thread_goes_on():
    def items():
        yield 1
        raise ValueError("no answer")

    found = prefetch.prefetch(items, 2, "an item")
    assert next(found) == 1
    with pytest.raises(ValueError, match="no answer"):
        next(found)
    assert list(prefetch.prefetch(lambda: (letter for letter in "ab"), 2, "an item")) == ["a", "b"]


def test_who_leaves_early_has_the_generator_closed_by_the_thread():
    closed = []

    def items():
        try:
            yield from range(9)
        finally:
            closed.append(threading.current_thread().name)

    found = prefetch.prefetch(items, 2, "an item")
    assert next(found) == 0
    found.close()
    assert closed == ["batches_0"]


def test_a_wait_says_what_for(monkeypatch):
    monkeypatch.setattr(prefetch, "WAIT_SECONDS", 0.1)
    found = prefetch.prefetch(lambda: (time.sleep(0.5) for _ in range(1)), 1, "the next batch")
    with pytest.raises(WaitedTooLong, match=r"waited 0\.1 s for the next batch, which a thread fetches from the serv"):
        next(found)


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(rpc, "LIMIT_SECONDS", 2.5)
    monkeypatch.setattr(rpc.rpc, "recv_rpc_message", lambda ms: time.sleep(ms / 1000))  # as DGL: None, in time
    what = "rows: answer 1 of 2 from the DGL servers of other machines"
    with pytest.raises(WaitedTooLong, match=f"waited 2.5 s for {what}"):
        rpc.receive({7: 0, 8: 1}, "rows")
    assert capsys.readouterr().err == f"waiting for {what} (for at most 2.5 s)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast", 0, "1GB"), "no loader 'fast'"),
        (("pipeline", 2, "1GB"), "no use for --samplers 2"),
        (("auto", 0, "much"), "'much' is not an amount of memory"),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(InputError, match=message):
        check_loader(*arguments)


def test_memory_for_rows_of_other_machines():
    assert check_loader("auto", 2, "0") == 0
    assert check_loader("pipeline", 0, "1.5MB") == 1_500_000


@pytest.mark.cluster
@pytest.mark.parametrize("words", [[], ["--use_graphbolt"]], ids=["parts of DGL", "parts of GraphBolt"])
def test_every_setting_gives_the_logits_of_dgl_s_loader(emulation, nothing_left, partition_of, tmp_path, words):
    partition = partition_of(2)
    cluster = EmulatedCluster(2)
    write_ip_config(tmp_path / "ip_config.txt", cluster.machines)
    plan = JobPlan(
        machines=cluster.machines,
        command=[sys.executable, str(TRAINER), partition.graph_name, *words],
        part_config=str(partition.config),
        ip_config=str(tmp_path / "ip_config.txt"),
        log_dir=str(tmp_path / "logs"),
        cwd=str(tmp_path),
        master_port=29500,
    )
    with cluster:
        coordinator = Coordinator(cluster, plan)
        coordinator.run()
    compared = [event for event in coordinator.events if event["kind"] == "compared"]
    assert len(compared) == 2 * 4
    for event in compared:
        assert event["largest"] <= 1e-5 * event["scale"], event
        assert event["again"] <= 1e-5 * event["scale"], event
        assert event["labels"]
        kept = event["kept"]
        if event["setting"].startswith("nothing"):
            assert (kept["lists_kept"], kept["rows_kept"], kept["rows_found"]) == (0, 0, 0)
        else:
            assert kept["lists_bytes"] > 0
            assert kept["rows_found"] > 0
        if event["setting"].startswith("all kept"):  # the second pass asks for nothing
            assert kept["rows_asked"] - kept["rows_found"] == kept["rows_kept"]
    inferred = [event for event in coordinator.events if event["kind"] == "inferred"]
    assert [event["budget"] for event in inferred if event["rank"] == 1] == [0, 20_000, 10**8]
    assert all(event["largest"] <= 1e-5 * event["scale"] for event in inferred), inferred
    drawn = [event for event in coordinator.events if event["kind"] == "drawn"]
    assert len(drawn) == 2
    for event in drawn:
        assert event["lists"] > 0
        assert event["width"] == 100
        assert event["same"] == [True, False]  # equal seeds draw equal batches, other seeds others
    rest = [event for event in coordinator.events if event["kind"] == "rest"]
    assert len(rest) == 2 * 2
    for event in rest:
        assert event["same"] == [True] * (event["batches"] - event["done"])


@pytest.mark.cluster
def test_both_loaders_learn_the_same(nothing_left, learned_run, partition_of, tmp_path):
    (config, ours), layout = learned_run, Layout(emulate=2)
    by_dgl = replace(config, loader="dgl")
    theirs = run_distributed(partition_of(2), layout, by_dgl, tmp_path / "run")
    results = {"pipeline": ours, "dgl": theirs}
    assert ours["test_accuracy"] == pytest.approx(theirs["test_accuracy"], abs=0.04)
    pulled = {name: sum(rank["bytes_remote"] for rank in result["phases"]) for name, result in results.items()}
    assert pulled["pipeline"] < pulled["dgl"] / 2
