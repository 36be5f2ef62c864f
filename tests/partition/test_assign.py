"""Assignment of nodes to parts, and amounts of memory as text."""

import dgl
import numpy as np
import pytest
import torch
from shared_data import tiny_dataset

from tutorial_lib.data import Dataset
from tutorial_lib.errors import InputError
from tutorial_lib.files import parse_memory
from tutorial_lib.partition import partition_dataset
from tutorial_lib.partition.assign import assign_nodes, undirected_adjacency
from tutorial_lib.partition.folder import method_name

NOBODY = np.empty(0, np.int64)  # no training nodes


@pytest.mark.parametrize(
    ("graph", "pairs"),
    [
        (dgl.graph(([0, 0, 1, 2, 0], [1, 2, 0, 2, 1])), [(0, 1), (0, 2)]),
        (dgl.heterograph({("a", "to", "b"): ([0, 1], [2, 0]), ("b", "r", "b"): ([0], [1])}), [(0, 4), (1, 2), (2, 3)]),
    ],
)
def test_adjacency_has_no_directions_duplicates_and_loops(graph, pairs):
    """The types are numbered one after the other."""
    expected = np.zeros((graph.num_nodes(), graph.num_nodes()), bool)
    for one, other in pairs:
        expected[one, other] = expected[other, one] = True
    assert (undirected_adjacency(Dataset("g", graph, 0)).toarray() == expected).all()


@pytest.mark.parametrize("method", ["kaminpar", "random"])
def test_assignment_depends_on_seed(small_dataset, tmp_path, method):
    cuts = [assign_nodes(small_dataset, 3, method, tmp_path, NOBODY, seed) for seed in (1, 1, 2)]
    assert (cuts[0] == cuts[1]).all()
    assert (cuts[0] != cuts[2]).any()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("parts", [2, 4])
def test_kaminpar_cuts_few_edges_and_balances_training_nodes(small_dataset, tmp_path, parts):
    train = np.flatnonzero(small_dataset.graph.ndata["train_mask"])
    part_of = assign_nodes(small_dataset, parts, "kaminpar", tmp_path, train, 0)
    src, dst = small_dataset.graph.edges()
    assert (part_of[src] != part_of[dst]).mean() < (1 - 1 / parts) / 3  # a third of that of random parts
    assert np.bincount(part_of).max() <= 1.1 * len(part_of) / parts
    assert np.bincount(part_of[train]).max() <= np.ceil(1.03 * len(train) / parts)


def test_compressed_graph_is_partitioned(small_dataset, tmp_path, monkeypatch):
    src, dst = small_dataset.graph.edges()
    cut = {}
    for limit in (2**28, 0):
        monkeypatch.setattr("tutorial_lib.partition.assign.COMPRESSED", limit)
        one, other = (assign_nodes(small_dataset, 4, "kaminpar", tmp_path, NOBODY, 0) for _ in range(2))
        assert (one == other).all()
        cut[limit] = float((one[src] != one[dst]).mean())
    assert cut[0] == pytest.approx(cut[2**28], rel=0.2)


def test_a_star_and_a_graph_without_edges(tmp_path):
    star = dgl.graph((torch.zeros(3000, dtype=torch.int64), torch.arange(1, 3001)))
    loops = dgl.graph((torch.arange(50), torch.arange(50)))
    for graph in (star, loops):
        counts = np.bincount(assign_nodes(Dataset("g", graph, 0), 4, "kaminpar", tmp_path, NOBODY, 0), minlength=4)
        assert counts.max() <= 1.04 * graph.num_nodes() / 4 + 1


def test_assignment_from_file(tmp_path):
    file, wanted = tmp_path / "parts.npy", np.array([1, 0, 1, 0, 0, 0, 1, 1], np.uint8)
    np.save(file, wanted)
    done = partition_dataset(tiny_dataset(), 2, tmp_path / "p", method=str(file))
    assert (done.node_map == np.argsort(wanted, kind="stable")).all()
    assert partition_dataset(tiny_dataset(), 2, tmp_path / "p", method=str(file)).reused
    np.save(file, 1 - wanted)
    with pytest.raises(InputError, match="other data or options"):
        partition_dataset(tiny_dataset(), 2, tmp_path / "p", method=str(file))


@pytest.mark.parametrize(
    "array", [np.zeros(7, int), np.zeros(8), np.arange(8), -np.arange(8), np.zeros(8, int), np.array([{}] * 8)]
)
def test_mistakes_in_assignment_file(array, tmp_path):
    np.save(tmp_path / "parts.npy", array)
    problems = "expected an array of 8 integers from 0 to 1|could not cut 8 nodes into 2 parts|cannot be read"
    with pytest.raises(InputError, match=problems):
        partition_dataset(tiny_dataset(), 2, tmp_path / "p", method=str(tmp_path / "parts.npy"))
    assert not (tmp_path / "p").exists()


def test_invalid_method_or_number_of_parts(tmp_path):
    with pytest.raises(InputError, match="the partition method metis does not exist") as caught:
        partition_dataset(tiny_dataset(), 2, tmp_path / "p", method="metis")
    assert "--method kaminpar" in caught.value.remedy
    with pytest.raises(InputError, match="there is no such file"):
        method_name("missing.npy")
    with pytest.raises(InputError, match="nodes into 0 parts"):
        partition_dataset(tiny_dataset(), 0, tmp_path / "p")


def test_parse_memory():
    texts = {"12GB": 12 * 10**9, "1.5 gib": 3 * 2**29, "800M": 8 * 10**8, "5000": 5000}
    assert {text: parse_memory(text) for text in texts} == texts
    for text in ("", "-1GB", "12 GB of it", "0"):
        with pytest.raises(InputError, match="memory"):
            parse_memory(text)
