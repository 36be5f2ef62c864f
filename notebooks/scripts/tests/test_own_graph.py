"""Tests of ``own_graph.py``."""

import csv

import numpy as np
import pyarrow as pa
import pytest

from own_graph import assign_stream, bucket_edges, name_predictions, read_bucket

EDGES = [[0, 1], [2, 2], [1, 0], [4, 3], [0, 1], [3, 0], [2, 4]]
PART_OF = np.array([1, 0, 1, 0, 1, 2], np.uint8)


@pytest.fixture
def chunks(tmp_path):
    (tmp_path / "chunks").mkdir()
    return save(tmp_path / "chunks", EDGES[:3], EDGES[3:])


def save(folder, *arrays):
    files = [folder / f"{number}.npy" for number in range(len(arrays))]
    for file, array in zip(files, arrays):
        np.save(file, np.array(array))
    return files


@pytest.mark.parametrize(
    ("edges", "nodes", "parts", "expected"),
    [
        ([[0, 1], [2, 3]], 4, 2, [0, 0, 1, 1]),  # a node with a neighbor joins its part, and node 2 the smallest part
        ([[0, 1], [2, 3], [1, 2], [1, 3]], 8, 2, [0, 1, 0, 1, 0, 1, 0, 1]),  # nodes 1 and 2 move
        ([[0, 1], [1, 2], [3, 2], [4, 3], [4, 5]], 6, 2, [0, 0, 1, 1, 0, 0]),  # a part above its capacity loses 2 and 3
        ([[0, 1], [2, 3], [4, 5], [1, 4], [3, 4]], 6, 3, [0, 0, 1, 1, 1, 2]),  # node 4 moves twice
        ([[5, 5], [5, 3]], 6, 4, [1, 2, 3, 0, 1, 0]),  # nodes without an edge join the smallest part in their order
    ],
)
def test_assign_stream(tmp_path, edges, nodes, parts, expected):
    """Follow the steps of the docstring by hand: count the neighbor, compare the scores, move, and update the sizes."""
    found = assign_stream(save(tmp_path, edges), nodes, parts)
    got, expected = (found.tolist(), found.dtype), (expected, np.dtype("uint8"))
    assert got == expected


def communities(seed, nodes=120, edges=1500):
    """Return edges, 90 % of them between nodes with the same remainder modulo 3."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(nodes, size=(2, edges))
    inside = rng.random(edges) < 0.9
    return np.stack([src, np.where(inside, (dst - dst % 3 + src % 3) % nodes, dst)], axis=1)


def cut_and_sizes(part_of, edges):
    return (part_of[edges[:, 0]] != part_of[edges[:, 1]]).mean(), np.bincount(part_of, minlength=3)


@pytest.mark.parametrize("seed", range(4))
def test_stream_finds_communities(tmp_path, seed):
    """A second pass keeps parts, sizes and counts, and cuts fewer edges. No part exceeds its capacity by much."""
    edges = communities(seed)
    chunks = save(tmp_path, *np.array_split(edges, 4))
    cuts, sizes = zip(*(cut_and_sizes(assign_stream(chunks, 120, 3, passes), edges) for passes in (1, 3)))
    got, expected = (cuts[0] < 0.6, cuts[1] < cuts[0], max(map(max, sizes)) <= 43), (True, True, True)
    assert got == expected


def test_chunks_do_not_matter(tmp_path):
    """The stream continues over the files. Also, the list of files is not changed."""
    edges = communities(0)
    (tmp_path / "one").mkdir()
    one, four = save(tmp_path / "one", edges), save(tmp_path, *np.array_split(edges, 4))
    got, expected = assign_stream(four, 120, 3, 2).tolist(), assign_stream(one, 120, 3, 2).tolist()
    assert got == expected
    got, expected = len(four), 4
    assert got == expected


def test_bucket_edges(chunks, tmp_path):
    """Each edge and each reverse is in the file of the part of its destination, also duplicates."""
    bucket_edges(chunks, PART_OF, 4, tmp_path)
    bucket_edges(chunks, PART_OF, 4, tmp_path)  # replaces the files
    pairs = [np.fromfile(tmp_path / f"{part}.edges", np.int64).reshape(-1, 2).tolist() for part in range(4)]
    both = [*EDGES, *(edge[::-1] for edge in EDGES)]
    got, expected = [sorted(p) for p in pairs], [sorted(e for e in both if PART_OF[e[1]] == part) for part in range(4)]
    assert got == expected


def test_read_bucket(tmp_path):
    """Remove duplicates, and sort by destination and then by source."""
    np.array([[5, 1], [0, 3], [2, 1], [5, 1], [3, 3], [0, 3]]).tofile(tmp_path / "0.edges")
    found = read_bucket(tmp_path / "0.edges", 6)
    got, expected = (found.tolist(), found.dtype), ([[2, 1], [5, 1], [0, 3], [3, 3]], np.dtype("int64"))
    assert got == expected


def test_read_empty_bucket(tmp_path):
    """The result of an empty file has the shape (0, 2)."""
    (tmp_path / "0.edges").touch()
    got, expected = read_bucket(tmp_path / "0.edges", 6).shape, (0, 2)
    assert got == expected


def test_name_predictions(tmp_path):
    """Prediction i belongs to the node ids[node_map[i]]. The rows have the order of ids, and the form of the IDs."""
    ids, classes = pa.array(["007", "7", "NA", "a, b"]), ["red", "green", "blue"]
    name_predictions(ids, np.array([2, 0, 3, 1]), np.array([1, 0, 2, 0]), classes, tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(newline="") as file:
        got = list(csv.reader(file))
    expected = [["id", "prediction"], ["007", "red"], ["7", "red"], ["NA", "green"], ["a, b", "blue"]]
    assert got == expected
