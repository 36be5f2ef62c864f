"""Hold out edges, so that neither a reverse edge nor a message reveals them, on any number of machines (lesson 13)."""

import dgl
import numpy as np
import torch
import torch.distributed as dist
from dgl.distributed import DistTensor, edge_split

from job import take_share


def hash_pairs(first, second):
    """Return a number between 0 and 1 for each pair of IDs, float64 (E,). It looks random (SplitMix64)."""

    def scramble(x):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    first, second = (ids.numpy().astype(np.uint64) for ids in (first, second))
    return torch.from_numpy(scramble(scramble(first + np.uint64(1)) ^ second) / 2.0**64)


def choose_sides(u, v, share):
    """Return the side of each edge (u, v), a uint8 tensor (E,): 0 for training, 1 for validation, 2 for test.

    Both directions of an edge get the same side. Its number is ``hash_pairs(smaller node ID, larger node ID)``. The
    edge belongs to the test edges if the number is below ``share``, and to the validation edges if it is below
    ``2 * share``.

    Args:
        u, v: original IDs of the two nodes, int64 (E,).
    """
    low, high = torch.minimum(u, v), torch.maximum(u, v)
    number = hash_pairs(low, high)
    sides = torch.zeros(len(u), dtype=torch.uint8)
    sides[number < 2 * share] = 1
    sides[number < share] = 2
    return sides


def number_pairs(src, dst, num_nodes):
    """Return an int64 number for each pair of nodes, equal for (u, v) and (v, u), and different for other pairs."""
    low, high = torch.minimum(src, dst), torch.maximum(src, dst)
    return low * num_nodes + high


class TrainingGraph:
    """A graph whose samples never contain held-out edges. Everything else is as in the graph ``g``.

    Attributes:
        g: DistGraph or DGLGraph.
        original: original ID of each node, int64 (N,).
        share: share of the test edges among all edges, and of the validation edges.
    """

    def __init__(self, g, original, share=0.05):
        self.g, self.original, self.share = g, original, share

    def __getattr__(self, name):
        if name == "g" or name.startswith("__"):  # pickle looks for methods before the object has attributes
            raise AttributeError(name)
        return getattr(self.g, name)

    def sides(self, src, dst):
        """Return the sides of edges, given by the IDs that the nodes have in ``g``."""
        return choose_sides(self.original[src], self.original[dst], self.share)

    def sample_neighbors(self, nodes, fanout, exclude_edges=None, **options):
        """Return what ``self.g.sample_neighbors(nodes, fanout, **options)`` returns, without some edges.

        Remove held-out edges with ``dgl.remove_edges``, which keeps ``edata[dgl.EID]``. A node can therefore get fewer
        than ``fanout`` neighbors. DGL's samplers call this method. Their method ``sample_blocks(graph, seeds,
        exclude_eids)`` passes the last argument on as ``exclude_edges``.

        Args:
            exclude_edges: None, or a pair (src, dst) of tensors. Remove these edges, too, in both directions. The two
                nodes identify the edge, so IDs of reverse edges are not necessary.
        """
        frontier = self.g.sample_neighbors(nodes, fanout, **options)
        src, dst = frontier.edges()
        hidden = self.sides(src, dst) > 0
        if exclude_edges is not None:
            pairs = number_pairs(*exclude_edges, self.g.num_nodes())
            hidden |= torch.isin(number_pairs(src, dst, self.g.num_nodes()), pairs)
        return dgl.remove_edges(frontier, hidden.nonzero().flatten())


def split_edges(graph):
    """Return the edges of this rank, a dict of edge IDs with the keys "train", "val" and "test" (sides 0, 1 and 2).

    ``book.partid2eids(book.partid)`` returns the edges of this machine. A machine computes the sides of these edges
    without the network (``graph.find_edges``, ``graph.sides``). For each key, create a uint8 ``DistTensor`` with an
    entry per edge and the policy ``graph.get_edge_partition_policy("_E")``. Its name is f"is-{key}". Set the entries of
    the edges of this machine to 1 or 0. ``edge_split`` reads the entries of all machines, so all ranks wait before it
    (``dist.barrier``). As in ``job.split``, only the training shares are even, and ``take_share`` follows.

    Args:
        graph: TrainingGraph of a DistGraph.
    """
    book, policy = graph.get_partition_book(), graph.get_edge_partition_policy("_E")
    own, shares = book.partid2eids(book.partid), {}
    sides = graph.sides(*graph.find_edges(own))
    for side, name in enumerate(("train", "val", "test")):
        mask = DistTensor((graph.num_edges(),), torch.uint8, name=f"is-{name}", part_policy=policy)
        mask[own] = (sides == side).to(torch.uint8)
        dist.barrier()
        ids = edge_split(mask, book, force_even=name == "train")
        shares[name] = take_share(ids)
    return shares
