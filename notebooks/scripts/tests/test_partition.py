"""Tests of ``partition.py``."""

import pytest
import torch

from partition import (
    agree_on_steps,
    count_halo_nodes,
    edge_cut,
    epoch_bytes,
    epoch_seconds,
    expect_remote_rows,
    find_owners,
    imbalance,
    renumber,
    stream_partition,
)
from support.processes import fork

SRC = torch.tensor([0, 1, 0, 2, 2, 3, 4, 5])
DST = torch.tensor([1, 0, 2, 0, 3, 2, 0, 2])
PART_OF = torch.tensor([1, 1, 0, 0, 2, 1])


@pytest.mark.parametrize(("part_of", "expected"), [(PART_OF, 0.5), (PART_OF * 0, 0.0), (PART_OF.flip(0), 0.625)])
def test_cut_edges(part_of, expected):
    """An edge is cut if part_of[src] differs from part_of[dst]. Divide the number of cut edges by all edges."""
    got = round(edge_cut(SRC, DST, part_of), 6)
    assert got == expected


def test_halo_nodes():
    """Part 0 needs the sources 0 and 5, and part 1 needs 2 and 4. Part 2 contains no destination of a cut edge."""
    got = count_halo_nodes(SRC, DST, PART_OF, 3).tolist()
    expected = [2, 2, 0]
    assert got == expected


def test_a_halo_node_counts_once():
    """Node 3 has edges to two nodes of part 0, which count once. It is also a halo node of part 2."""
    src, dst = torch.tensor([3, 3, 3, 3, 0]), torch.tensor([0, 1, 2, 4, 1])
    got = count_halo_nodes(src, dst, torch.tensor([0, 0, 2, 1, 1]), 4).tolist()
    expected = [1, 0, 1, 0]
    assert got == expected


@pytest.mark.parametrize(
    ("parts", "weights", "expected"),
    [
        (3, torch.ones(6), 1.5),
        (3, torch.tensor([True, False, True, True, False, False]), 2.0),
        (4, torch.tensor([5, 0, 1, 2, 3, 1]), 2.0),
    ],
)
def test_imbalance(parts, weights, expected):
    """Add the weights of each part, also those of an empty part, and divide the largest sum by the mean of the sums."""
    got = round(float(imbalance(PART_OF, parts, weights)), 6)
    assert got == expected


def adjacency(neighbors):
    """Return the CSC tensors of a list with the neighbors of each node."""
    ends = torch.tensor([0, *map(len, neighbors)]).cumsum(0)
    return ends, torch.tensor([node for found in neighbors for node in found])


TWO_GROUPS = adjacency([[2, 4], [3, 5], [0, 4], [1, 5], [0, 2], [1, 3]])


def test_neighbors_attract():
    """Nodes 0, 2 and 4 are neighbors, and so are 1, 3 and 5. Each node follows its neighbors that have arrived."""
    got = stream_partition(*TWO_GROUPS, 2, torch.arange(6)).tolist()
    expected = [0, 1, 0, 1, 0, 1]
    assert got == expected


def test_the_order_counts():
    """Node 5 arrives first, so it gets part 0. Node 4 has no neighbor that has arrived, and gets the smaller part 1."""
    got = stream_partition(*TWO_GROUPS, 2, torch.tensor([5, 4, 0, 2, 1, 3])).tolist()
    expected = [1, 0, 1, 0, 1, 0]
    assert got == expected


@pytest.mark.parametrize(("parts", "expected"), [(2, [0, 0, 0, 1, 1, 1]), (3, [0, 0, 1, 1, 2, 2])])
def test_full_parts(parts, expected):
    """Each node is a neighbor of all others. The score of a part becomes 0 when the part has N / parts nodes."""
    everyone = adjacency([[other for other in range(6) if other != node] for node in range(6)])
    got = stream_partition(*everyone, parts, torch.arange(6)).tolist()
    assert got == expected


def test_nodes_without_neighbors():
    """All scores are 0, so each node gets the part with the fewest nodes, and the first of these."""
    nobody = adjacency([[]] * 7)
    got = stream_partition(nobody[0], torch.tensor([], dtype=torch.int64), 3, torch.arange(7)).tolist()
    expected = [0, 1, 2, 0, 1, 2, 0]
    assert got == expected


@pytest.mark.parametrize(("count", "expected"), [(8, 1), (10, 0)])
def test_neighbors_against_size(count, expected):
    """Node 6 has two neighbors in part 0 with three nodes, and one in part 1 with two nodes. Compute both scores."""
    graph = adjacency([[], [], [], [], [], [], [0, 1, 3], *[[]] * (count - 7)])
    order = torch.tensor([0, 3, 1, 4, 2, 6, 5, *range(7, count)])  # 0, 1 and 2 get part 0, and 3 and 4 get part 1
    got = stream_partition(*graph, 2, order).tolist()[6]
    assert got == expected


def test_scores_of_seven_nodes():
    """N / parts is 3.5, so do not round it. In both graphs, node 6 gets part 1. Compute the scores of both parts."""
    cases = [([0, 3, 4], [0, 3, 1, 4, 2, 5, 6]), ([0, 1, 2, 3], [0, 3, 1, 4, 2, 6, 5])]
    got = [stream_partition(*adjacency([*[[]] * 6, n]), 2, torch.tensor(order)).tolist()[6] for n, order in cases]
    expected = [1, 1]
    assert got == expected


def test_a_second_pass():
    """Node 0 arrives first. Its neighbors 2 and 4 count in their parts of the earlier pass, and sizes start at 0."""
    previous = torch.tensor([0, 0, 1, 0, 1, 0])
    second = stream_partition(*TWO_GROUPS, 2, torch.arange(6), previous)
    got = second.tolist(), previous.tolist()
    expected = [1, 0, 1, 0, 1, 0], [0, 0, 1, 0, 1, 0]
    assert got == expected


def test_new_ids():
    """Part 0 owns nodes 2 and 3, so they become 0 and 1. Parts 2 and 4 are empty, and their ranges are, too."""
    node_map, ranges = renumber(torch.tensor([1, 1, 0, 0, 3, 1]), 5)
    got = node_map.tolist(), ranges
    expected = [2, 3, 0, 1, 5, 4], [[0, 2], [2, 5], [5, 5], [5, 6], [6, 6]]
    assert got == expected


def test_many_nodes_keep_their_order():
    """A sort that is not stable changes the order of nodes with the same part."""
    part_of = torch.arange(2_000) % 2
    node_map, _ = renumber(part_of, 2)
    got = node_map.tolist()
    expected = [*range(0, 2_000, 2), *range(1, 2_000, 2)]
    assert got == expected


@pytest.mark.parametrize("ranges", [[[0, 4], [4, 9]], [[0, 7], [7, 9], [9, 20]], [[0, 5], [5, 5], [5, 6]]])
def test_owners(ranges):
    """A range includes its first ID but not its end. The result is -1 for an ID below 0 or from the last end on."""
    ids = torch.tensor([4, 0, 3, 8, 5, 7, 6, 9, 19, 20, -1])
    got = find_owners(ranges, ids).tolist()
    expected = [([k for k, (first, end) in enumerate(ranges) if first <= i < end] or [-1])[0] for i in ids.tolist()]
    assert got == expected


@pytest.mark.parametrize(("part", "batch_size", "expected"), [(0, 2, (6, 2)), (1, 2, (3, 2)), (1, 5, (5, 1))])
def test_expected_rows(part, batch_size, expected):
    """Count the input nodes in other parts, batch by batch. The last batch has too few nodes and does not count."""

    def find_inputs(seeds):
        return torch.cat([seeds, seeds + 5]).unique()  # a batch reads its seeds and five nodes further

    part_of = torch.tensor([0, 1, 0, 2, 0, 1, 1, 1, 0, 2, 2, 0])
    ids = torch.tensor([2, 0, 5, 1, 4])
    got = tuple(map(int, expect_remote_rows(find_inputs, ids, part_of, part, batch_size)))
    assert got == expected


@pytest.mark.parametrize(
    ("remote_rows", "steps", "overhead", "expected"),
    [((3, 5), 0, 0, [88, 104]), ((0, 0), 10, 0.5, [6_000, 6_000]), ((10, 0), 1, 0.1, [616, 528])],
)
def test_bytes_of_an_epoch(remote_rows, steps, overhead, expected):
    """Three remote rows of four numbers and five requests are 3 * 16 + 5 * 8 = 88 bytes. The rest is per step."""
    got = [round(float(size), 3) for size in epoch_bytes(remote_rows, steps, 4, 100, overhead)]
    assert got == expected


@pytest.mark.parametrize(("compute", "mbit", "expected"), [(0.5, 50, 0.82), (0.0, 1000, 0.016), (2.0, 8, 4.0)])
def test_seconds_of_an_epoch(compute, mbit, expected):
    """The machines receive at the same time, so 2,000,000 bytes count. A byte has 8 bits, and 1 Mbit is 1e6 bits."""
    got = round(epoch_seconds(compute, [2_000_000, 1_500_000], mbit), 6)
    assert got == expected


def test_ranks_agree():
    """In three calls, another rank has the smallest number each time, and every rank must return it as an int."""
    calls = [[8, 7, 9], [7, 9, 8], [9, 8, 7]]

    def agree(rank, _size):
        return [repr(agree_on_steps(steps[rank])) for steps in calls]

    got = fork(agree, 3, backend="gloo", threads=1, timeout=30, echo=False)
    expected = [["7", "7", "7"]] * 3
    assert got == expected
