"""The steps of our own cuts, and the choice between methods by memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import dgl
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from shared_data import tiny_dataset

from tutorial_lib.compat.heap import fixed_fresh_memory
from tutorial_lib.data.tables import free_in_group
from tutorial_lib.errors import InputError
from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import PREFERENCE, choose_method, parse_memory, partition_dataset
from tutorial_lib.partition.adjacency import cut_weight, in_edges, undirected
from tutorial_lib.partition.clustering import cluster, contract
from tutorial_lib.partition.cut import Cut, climb, limits, loads, masses, rebalance, sweep
from tutorial_lib.partition.memory import LIBRARIES, estimate_peak
from tutorial_lib.partition.methods import assign, check_no_empty_part


@pytest.fixture(scope="module")
def small_graph(small_dataset) -> sp.csr_array:
    """The small data set as arrays."""
    return undirected(small_dataset.graph)


def train_mask_of(dataset) -> np.ndarray:
    return dataset.graph.ndata["train_mask"].numpy()


def edge_cut(dataset, part_of: np.ndarray) -> int:
    src, dst = (ends.numpy() for ends in dataset.graph.edges())
    return int((part_of[src] != part_of[dst]).sum())


def test_in_edges_are_those_of_dgl(small_dataset):
    matrix = in_edges(small_dataset.graph)
    indptr, source, edge = matrix.indptr, matrix.indices, matrix.data
    theirs = small_dataset.graph.adj_tensors("csc")
    assert source.dtype == edge.dtype == np.int32
    assert (indptr == theirs[0].numpy()).all()
    src, dst = (ends.numpy() for ends in small_dataset.graph.edges(order="eid"))
    assert (src[edge] == source).all()
    assert (dst[edge] == np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))).all()


def test_a_directed_graph_gets_its_other_directions():
    graph = dgl.graph((torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 0, 2])))
    adjacency = undirected(graph)
    assert (adjacency.toarray() == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]).all()  # and no self loop


def random_graph(n: int, loops: bool) -> dgl.DGLGraph:
    one, other = np.random.default_rng(0).integers(0, n, (2, 4 * n))
    one, other = one[one != other], other[one != other]
    ends = [np.concatenate(pair) for pair in ((one, other), (other, one))]
    if loops:
        ends = [np.concatenate([end, np.arange(n)]) for end in ends]
    return dgl.graph(tuple(torch.from_numpy(end) for end in ends), num_nodes=n)


def test_self_loops_do_not_keep_nodes_alone():
    plain, looped = (undirected(random_graph(3000, loops)) for loops in (False, True))
    assert (plain.indptr == looped.indptr).all()
    assert (plain.indices == looped.indices).all()
    counts = [int(cluster(a, np.ones(3000), 50, 3, np.random.default_rng(0)).max()) for a in (plain, looped)]
    assert counts[0] == counts[1] < 1000


def test_links_and_cut(small_graph, small_dataset):
    n = small_graph.shape[0]
    part_of = np.random.default_rng(0).integers(0, 3, n)
    linked = Cut(small_graph, masses(n, None), part_of, 3).links(np.arange(n))
    assert linked.sum() == small_graph.nnz
    inside = linked[np.arange(len(part_of)), part_of].sum()
    assert cut_weight(small_graph, part_of) == edge_cut(small_dataset, part_of) == linked.sum() - inside


def test_clusters_are_many_nodes_within_the_limit(small_graph):
    rng = np.random.default_rng(0)
    label = cluster(small_graph, np.ones(small_graph.shape[0]), 50, 3, rng)
    sizes = np.bincount(label)
    assert sizes.min() >= 1
    assert sizes.max() <= 50
    assert len(sizes) < small_graph.shape[0] / 5
    inside = 1 - cut_weight(small_graph, label) / small_graph.nnz
    assert inside > 0.1  # in groups of 50 at random: 0.4 %


def test_nodes_without_links_are_packed():
    lonely = sp.csr_array((100, 100), dtype=np.int8)
    sizes = np.bincount(cluster(lonely, np.ones(100), 40, 3, np.random.default_rng(0)))
    assert len(sizes) < 20
    assert sizes.max() <= 40


@pytest.mark.parametrize("block", [1, 1 << 21])
def test_a_contracted_graph_adds_up_the_links_between_clusters(small_graph, monkeypatch, block):
    """By the definition, with dense matrices."""
    monkeypatch.setattr("tutorial_lib.partition.clustering.BLOCK", block)
    graph = small_graph[:1000, :1000]
    label = np.random.default_rng(3).permutation(np.arange(1000, dtype=np.int32) % 40)
    members = np.eye(40)[label]
    expected = members.T @ graph.toarray() @ members
    np.fill_diagonal(expected, 0)
    found = contract(graph, label)
    assert found.shape == (40, 40)
    assert np.array_equal(found.toarray(), expected)


def test_a_cut_of_the_contracted_graph_has_the_same_weight(small_graph):
    rng = np.random.default_rng(0)
    label = cluster(small_graph, np.ones(small_graph.shape[0]), 50, 3, rng)
    smaller = contract(small_graph, label)
    part_of = rng.integers(0, 4, smaller.shape[0])
    assert cut_weight(smaller, part_of) == cut_weight(small_graph, part_of[label])
    row = np.repeat(np.arange(smaller.shape[0]), np.diff(smaller.indptr))
    assert (smaller.indices != row).all()
    again = contract(smaller, np.arange(smaller.shape[0], dtype=np.int32))
    assert again.nnz == smaller.nnz  # nothing was there twice


def test_rebalance_empties_a_part_that_is_too_full(small_graph, small_dataset):
    mass = masses(small_graph.shape[0], train_mask_of(small_dataset))
    limit = limits(mass, 3)
    part_of = np.zeros(small_graph.shape[0], np.int32)
    part_of[:100] = 1
    rebalance(Cut(small_graph, mass, part_of, 3))
    assert (loads(mass, part_of, 3) <= limit).all()


def test_refinement_never_makes_it_worse(small_graph, small_dataset):
    rng = np.random.default_rng(0)
    mass = masses(small_graph.shape[0], train_mask_of(small_dataset))
    limit = limits(mass, 2)
    part_of = rng.integers(0, 2, small_graph.shape[0]).astype(np.int32)
    cut = Cut(small_graph, mass, part_of, 2)
    rebalance(cut)
    before = cut_weight(small_graph, part_of)
    sweep(cut, 3, rng)
    after = cut_weight(small_graph, part_of)
    assert after < 0.8 * before
    assert (loads(mass, part_of, 2) <= limit).all()
    assert np.array_equal(cut.load, loads(mass, part_of, 2))
    label = cluster(small_graph, np.ones(small_graph.shape[0]), 50, 3, rng)
    smaller, mass = contract(small_graph, label), loads(mass, label, int(label.max()) + 1)
    cut = Cut(smaller, mass, rng.integers(0, 2, smaller.shape[0]).astype(np.int32), 2)
    rebalance(cut)
    before = cut_weight(smaller, cut.part_of)
    climb(cut, 3)
    assert cut_weight(smaller, cut.part_of) < 0.8 * before
    assert (loads(mass, cut.part_of, 2) <= limit).all()
    assert np.array_equal(cut.load, loads(mass, cut.part_of, 2))


def path_graph(n: int) -> sp.csr_array:
    return undirected(dgl.graph((torch.arange(n - 1), torch.arange(1, n)), num_nodes=n))


def test_the_last_node_of_a_part_stays():
    adjacency, mass = path_graph(4), np.ones((4, 1), np.int64)
    for improve in (lambda cut: sweep(cut, 3, np.random.default_rng(0)), lambda cut: climb(cut, 3)):
        cut = Cut(adjacency, mass, np.array([0, 1, 0, 0], np.int32), 2)
        cut.limit[:] = 4
        improve(cut)
        assert np.bincount(cut.part_of, minlength=2).min() >= 1
    # Two nodes that would leave their part in one go:
    both = np.array([0, 1, 0, 0, 0, 0, 0, 1, 0], np.int32)
    cut = Cut(path_graph(9), np.ones((9, 1), np.int64), both, 2)
    cut.limit[:] = 9
    sweep(cut, 3, np.random.default_rng(0))
    assert np.bincount(both, minlength=2).min() >= 1


@pytest.mark.parametrize("balance", [False, True])
def test_a_large_star_is_cut_in_seconds(balance):
    n = 20_001
    star = dgl.graph((torch.zeros(n - 1, dtype=torch.int64), torch.arange(1, n)))
    mask = np.arange(n) % 10 == 0 if balance else None
    begin = time.process_time()
    part_of = assign(star, 4, "multilevel", train_mask=mask)
    assert time.process_time() - begin < 20  # one node at a time, it takes many minutes
    mass = masses(n, mask)
    assert (loads(mass, part_of, 4) <= limits(mass, 4)).all()


def test_the_best_cut_of_two_squares_is_found():
    dataset = tiny_dataset()
    part_of = assign(dataset.graph, 2, "multilevel")
    assert part_of.dtype == np.int64
    assert edge_cut(dataset, part_of) == 2


@pytest.mark.parametrize("parts", [2, 4])
def test_cuts_beside_metis_and_random(small_dataset, parts):
    mask = train_mask_of(small_dataset)
    with fixed_fresh_memory():
        balance = small_dataset.graph.ndata["train_mask"]
        by_dgl = dgl.metis_partition_assignment(small_dataset.graph, parts, balance_ntypes=balance).numpy()
    cuts = {"metis": edge_cut(small_dataset, by_dgl)}
    for method in ("multilevel", "streaming", "random"):
        part_of = assign(small_dataset.graph, parts, method, train_mask=mask)
        cuts[method] = edge_cut(small_dataset, part_of)
        if method in ("multilevel", "streaming"):
            mass = masses(len(part_of), mask)
            assert (loads(mass, part_of, parts) <= limits(mass, parts)).all()
    assert cuts["multilevel"] < 1.05 * cuts["metis"]
    assert cuts["streaming"] < cuts["random"] / 3


@pytest.mark.parametrize("method", ["multilevel", "streaming", "random"])
def test_the_seed_decides(small_dataset, method):
    cuts = [assign(small_dataset.graph, 3, method, seed=seed) for seed in (1, 1, 2)]
    assert (cuts[0] == cuts[1]).all()
    assert (cuts[0] != cuts[2]).any()


@pytest.mark.parametrize("method", ["multilevel", "streaming"])
def test_odd_graphs_are_cut(method):
    star = dgl.graph((torch.zeros(300, dtype=torch.int64), torch.arange(1, 301)))
    lonely = dgl.graph((torch.tensor([0]), torch.tensor([1])), num_nodes=3000)
    loops = dgl.graph((torch.arange(50), torch.arange(50)))
    for graph in (star, lonely, loops):
        counts = np.bincount(assign(graph, 4, method), minlength=4)
        assert counts.max() <= 1.04 * graph.num_nodes() / 4 + 1


def test_more_parts_than_can_be_filled():
    with pytest.raises(InputError, match="no node"):
        assign(dgl.graph(([0], [1]), num_nodes=2), 3, "streaming")


@pytest.mark.parametrize(
    ("text", "count"),
    [("12GB", 12 * 10**9), ("1.5 gib", 3 * 2**29), ("800M", 8 * 10**8), ("5000", 5000), (7, 7), ("1tb", 10**12)],
)
def test_memory_is_read(text, count):
    assert parse_memory(text) == count
    assert parse_memory(None) is None


@pytest.mark.parametrize("text", ["", "much", "-1GB", "12 GB of it", "0", "1iB", "nan", "1e9"])
def test_what_is_not_an_amount_of_memory(text):
    with pytest.raises(InputError, match="memory"):
        parse_memory(text)


def test_the_first_method_that_fits_is_taken(small_dataset):
    graph = small_dataset.graph
    metis, ours = estimate_peak(graph, 2, "metis", by_dgl=True), estimate_peak(graph, 2, "multilevel", by_dgl=False)
    assert ours < metis
    assert choose_method(graph, 2, max_memory=metis).method == "metis"
    choice = choose_method(graph, 2, max_memory=metis - 1)
    assert (choice.method, choice.by_dgl) == ("multilevel", False)
    assert "metis about" in choice.reason
    assert choose_method(graph, 2, "random", metis).by_dgl
    assert not choose_method(graph, 2, "random", metis - 1).by_dgl
    with pytest.raises(InputError, match=r"does not fit in 0\.1 GB.*metis about.*multilevel about"):
        choose_method(graph, 2, max_memory="100MB")
    with pytest.raises(InputError, match="metis about") as caught:
        choose_method(graph, 2, "metis", metis - 1)
    assert "--method multilevel" in str(caught.value.remedy)
    with pytest.raises(InputError, match="metis about") as caught:
        choose_method(graph, 2, "metis", ours)  # to the byte
    assert "--method multilevel" in str(caught.value.remedy)


def test_each_node_takes_a_byte_for_each_part():
    ends = torch.arange(1000), torch.arange(1000).roll(1)
    few, more = (estimate_peak(dgl.graph(ends), parts, "random", by_dgl=False) for parts in (30, 40))
    assert more - few == 10 * 1000


def test_a_part_without_nodes_is_an_error():
    check_no_empty_part(np.array([0, 1, 1, 1, 0, 2]), 3, "random")
    with pytest.raises(InputError, match="could not cut 4 nodes into 4 parts: part 1 has no node"):
        check_no_empty_part(np.array([0, 2, 2, 0]), 4, "random")


def test_an_estimate_counts_what_a_graph_has():
    ends = torch.arange(1000), torch.arange(1000).roll(1)
    one_way, both = dgl.graph(ends), dgl.graph((torch.cat(ends), torch.cat(ends[::-1])))

    def per_edge(graph: dgl.DGLGraph) -> float:
        return (estimate_peak(graph, 2, "multilevel", by_dgl=False) - LIBRARIES - 102 * 1000) / graph.num_edges()

    assert per_edge(one_way) > per_edge(both)
    for by_dgl in (True, False):
        before = estimate_peak(both, 2, "random", by_dgl=by_dgl)
        both.edata["length"] = torch.zeros(2000, 50)
        assert estimate_peak(both, 2, "random", by_dgl=by_dgl) >= before + 2000 * 50 * 4
        del both.edata["length"]


def test_estimates_by_hand():
    """Four parts of a ring of 1,000 nodes with 40,000 bytes of features; 600 MB are the libraries."""
    ends = torch.arange(1000), torch.arange(1000).roll(1)
    one_way, both = dgl.graph(ends), dgl.graph((torch.cat(ends), torch.cat(ends[::-1])))
    for graph in (one_way, both):
        graph.ndata["feat"] = torch.zeros(1000, 10)
    expected = [
        (one_way, "metis", True, 180_000 + 2 * 40_000),  # DGL's split, and the features twice
        (one_way, "random", False, 160_000 + 41_500),  # ids, features, maps; a part: (1,750 * 72 + 40,000) / 4
        (one_way, "multilevel", False, 160_000 + 56_000),  # clusters, of edges that come in both directions first
        (both, "multilevel", False, 176_000 + 51_400),  # a part: (2,300 * 72 + 40,000) / 4
        (both, "streaming", False, 176_000 + 56_800),
    ]
    for graph, method, by_dgl, more in expected:
        assert estimate_peak(graph, 4, method, by_dgl=by_dgl) == 600_000_000 + more
    both.edata["length"] = torch.zeros(2000)
    assert estimate_peak(both, 4, "metis", by_dgl=True) == 600_000_000 + 360_000 + 2 * 48_000


def test_auto_never_means_streaming(small_dataset):
    peaks = [estimate_peak(small_dataset.graph, 2, name, by_dgl=False) for name in ("multilevel", "streaming")]
    assert "streaming" not in PREFERENCE
    assert peaks[1] >= peaks[0]


def test_cached_files_of_a_container_are_free(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 600\nactive_file 50\n")
    assert free_in_group(tmp_path) == 700


def test_little_memory_says_what_it_chose_and_a_folder_is_reused(small_dataset, tmp_path):
    said: list[str] = []
    limit = estimate_peak(small_dataset.graph, 2, "metis", by_dgl=True) - 1
    first = partition_dataset(small_dataset, 2, tmp_path / "p", max_memory=limit, progress=said.append)
    assert said[0].startswith("method multilevel: about")
    assert any("clustering" in line for line in said)
    assert "clustering" in (first.folder / "partition.log").read_text()
    assert first.manifest["method"] == first.report.method == "multilevel"
    assert first.report.edge_cut == edge_cut(
        small_dataset, assign(small_dataset.graph, 2, "multilevel", train_mask=train_mask_of(small_dataset))
    )
    # With more memory auto would take METIS today; what is there is as good.
    assert partition_dataset(small_dataset, 2, tmp_path / "p").reused
    with pytest.raises(InputError, match="other options"):
        partition_dataset(small_dataset, 2, tmp_path / "p", method="metis")


def test_a_source_keeps_one_folder_per_method_and_seed(small_dataset, tmp_path):
    limit = estimate_peak(small_dataset.graph, 2, "metis", by_dgl=True) - 1

    def folder(**options) -> str:
        source = DataSource("synthetic-products", root=tmp_path, **options)
        return source.partition(small_dataset, 2, lambda _line: None).folder.name

    first = folder(max_memory=limit)
    assert "multilevel-seed0" in first
    assert folder() == first  # it is there already
    assert folder(method="streaming") != folder(method="streaming", seed=1)
    assert "-metis-v" in folder(method="metis")
    assert "-metis-v" in folder(method="metis", max_memory="1MB")  # nothing is cut, so nothing has to fit


def test_a_source_says_why_it_is_not_metis(small_dataset, tmp_path):
    said: list[str] = []
    limit = estimate_peak(small_dataset.graph, 2, "metis", by_dgl=True) - 1
    source = DataSource("synthetic-products", root=tmp_path, max_memory=limit)
    source.partition(small_dataset, 2, said.append)
    assert "metis about" in said[0]
    with pytest.raises(InputError, match="unknown partition method"):
        DataSource("synthetic-products", root=tmp_path, method="hope").partition(small_dataset, 2, said.append)


def test_the_benchmark_says_that_a_cut_failed(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "partition_full.py"
    command = [sys.executable, str(script), "--root", str(tmp_path), "--stop-at", "1MB", "--scale", "0.002"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "stopped: more than" in done.stdout
    assert list(tmp_path.glob("tmp*")) == []


def test_a_random_cut_is_the_same_in_every_process():
    """DGL numbers its threads in the order in which they come to their first seed: two outcomes, by chance."""
    code = """
import os, dgl
from tutorial_lib.partition.methods import assign, check_no_empty_part
graph = dgl.graph(([0, 1], [1, 2]), num_nodes=1000)
for _ in range(8):
    if os.fork() == 0:
        print(assign(graph, 2, "random", seed=1).tobytes().hex(), flush=True)
        os._exit(0)
    os.wait()
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=120, check=True)
    assert len(set(done.stdout.split())) == 1
    assert len(done.stdout.split()) == 8
