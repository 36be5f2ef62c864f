"""Tests of ``ranking.py``, on vectors with known cosines. One test starts two real ranks."""

from types import SimpleNamespace

import pytest
import torch

import ranking
from support.processes import fork

# Unit vectors 0 to 4 with simple cosines, and 5, which has the direction of 2
H = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0], [0.6, -0.8], [4.0, 3.0]])


def ranks(src, dst, candidates, h=H):
    return ranking.rank_edges(h, *(torch.tensor(ids) for ids in (src, dst, candidates))).tolist()


def test_rank_among_candidates():
    """The edge (0, 1) has the cosine 0.6. Nodes 2, 3 and 4 have 0.8, 0 and 0.6. A tie counts one half."""
    got = ranks([0], [1], [2, 3]), ranks([0], [1], [2, 4]), ranks([0], [1], [3])
    expected = [2.0], [2.5], [1.0]
    assert got == expected


def test_nodes_of_the_edge_do_not_count():
    """The candidates 0 and 1 are nodes of the edge (0, 1)."""
    got = ranks([0], [1], [0, 1, 3]), ranks([1, 0], [0, 3], [1, 0, 3, 4])
    expected = [1.0], [2.0, 3.0]
    assert got == expected


def test_length_of_a_vector_does_not_count():
    """Normalize the rows. Node 5 has the direction of node 2 and is longer."""
    got = ranks([0], [1], [5, 3]), ranks([5], [3], [1, 4]), ranks([3], [1], [5])
    expected = [2.0], [2.0], [1.0]
    assert got == expected
    lengths = torch.linspace(1, 3, 50)[:, None]  # rows of one direction, whose cosines differ only by rounding
    got = ranks([0, 1, 2], [1, 2, 3], list(range(4, 50)), lengths * torch.tensor([0.3, 1.7, -0.9]))
    expected = [24.0, 24.0, 24.0]
    assert got == expected


def test_several_edges():
    """Each edge has its rank, also with rows read from a DistTensor."""

    class Rows:
        def __getitem__(self, ids):
            assert len(ids), "a DistTensor rejects an empty tensor of IDs"
            return H[ids]

    got = ranks([0, 3, 4], [1, 0, 2], [2, 3, 4], Rows())
    expected = [2.5, 2.0, 1.0]
    assert got == expected


def edges_of(count):
    """Return a graph whose edge e connects node 0 with node 1, 2, 3 or 4. The ranks among 1 to 4 differ."""
    calls = []

    def find_edges(ids):
        assert 0 < len(ids) <= 4096, f"find_edges of {len(ids)} edges"
        calls.append(len(ids))
        return torch.zeros_like(ids), ids % 4 + 1

    return SimpleNamespace(find_edges=find_edges, calls=calls, count=count)


def one_over_ranks(ids):
    """Candidates 1 to 4 have the cosines 0.6, 0.8, 0 and 0.6 with node 0, so the ranks are 2.5, 1, 4 and 2.5."""
    return sum([1 / 2.5, 1, 1 / 4, 1 / 2.5][e % 4] for e in ids.tolist())


@pytest.mark.parametrize("shares", [[8], [5, 3], [6, 0], [9000, 1]])
def test_mean_over_all_ranks(shares):
    """Add the reciprocal ranks of all ranks, and divide by the number of all edges. A rank can have no edges."""
    parts = torch.arange(sum(shares)).split(shares)

    def run(rank, _size):
        return ranking.mean_reciprocal_rank(H, edges_of(len(parts[rank])), parts[rank], torch.arange(1, 5))

    got = fork(run, len(shares), backend="gloo", threads=1, timeout=60)
    mean = one_over_ranks(torch.arange(sum(shares))) / sum(shares)
    expected = [pytest.approx(mean, rel=1e-5)] * len(shares)
    assert got == expected
