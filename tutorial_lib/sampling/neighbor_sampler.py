"""Sample in-neighbors from adjacency lists on this machine, and through the DGL servers of other machines.

A batch of three hops samples the neighbors of nodes in this machine's part, of its halo, and of the halo's neighbors.
``NeighborSampler`` reads the lists of its own part from the memory that the servers share. At the start it copies the
lists of the remote nodes that are used most, as far as a budget allows. For all other remote nodes the servers of
their machine sample.

The copied lists depend on the partition and the budget alone. If they depended on earlier batches, a resumed run would
start without them and sample other neighbors than an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.compat.generators import derive_seed
from tutorial_lib.sampling.rpc import (
    SampleRequest,
    fetch_neighbors,
    id_type,
    in_edges_of_part,
    merge_lists,
    ranges,
    receive,
    request,
)

NODES_PER_REQUEST = 8192
EDGES_AT_ONCE = 8 * 2**20
Lists = tuple[Tensor, Tensor, Tensor]  # int64 node IDs, int64 number of neighbors of each, IDs of all neighbors


@dataclass(frozen=True)
class Neighbors:
    """In-neighbors of D nodes in CSC format.

    Attributes:
        indptr: int32 (D + 1,). The neighbors of node d are ``sources[indptr[d] : indptr[d + 1]]``.
        sources: int32 or int64 (E,) global node IDs.
    """

    indptr: Tensor
    sources: Tensor


class Adjacency:
    """Adjacency lists in the memory of this process.

    Args:
        indptr: int64 (L + 1,). List k is ``sources[indptr[k] : indptr[k + 1]]``.
        sources: int32 or int64 node IDs.
        num_nodes: number of nodes of the whole graph.

    Attributes:
        dtype: type of node IDs.
        scratch: int32 (num_nodes,), filled with -1 between calls. The feature cache of the same thread shares it.
    """

    def __init__(self, indptr: Tensor, sources: Tensor, num_nodes: int) -> None:
        self.indptr, self.sources, self.dtype = indptr, sources, sources.dtype
        self.scratch = torch.full((num_nodes,), -1, dtype=torch.int32)
        wide = id_type(max(num_nodes, len(sources)))
        csc = (indptr.to(wide), sources.to(wide), torch.empty(0, dtype=wide))  # without edge IDs
        sizes = {"node": num_nodes, "list": len(indptr) - 1}
        self._graph: Any = dgl.heterograph({("node", "in", "list"): ("csc", csc)}, sizes)

    def seed(self, seed: int) -> None:
        """Seed DGL's generator of the calling thread."""
        dgl.seed(seed)

    def sample_lists(self, lists: Tensor, fanout: int) -> Neighbors:
        """Sample ``fanout`` neighbors from each list without replacement, or take all of a shorter list."""
        if fanout < 0:
            return self.whole_lists(lists)
        counts = (self.indptr[lists + 1] - self.indptr[lists]).clamp(max=fanout)
        wanted = {"list": lists.to(self._graph.idtype)}
        sampled: Any = dgl.sampling.sample_neighbors(self._graph, wanted, fanout, _dist_training=True)
        return Neighbors(offsets(counts).int(), sampled.edges()[0].to(self.dtype))  # DGL keeps the order of the lists

    def whole_lists(self, lists: Tensor) -> Neighbors:
        """Return all neighbors in the given lists."""
        begin, end = self.indptr[lists], self.indptr[lists + 1]
        sources = torch.index_select(self.sources, 0, ranges(begin, end - begin))
        return Neighbors(offsets(end - begin).int(), sources)

    def compact(self, sampled: Neighbors, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Number the nodes of a hop from 0.

        Args:
            sampled: neighbors of ``nodes``.
            nodes: different node IDs.

        Returns:
            IDs of all nodes of the hop, ``nodes`` first, and the int32 (E,) position of each neighbor among them.
        """
        position = self.scratch
        position[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        new = torch.unique(sampled.sources[torch.index_select(position, 0, sampled.sources) < 0])
        every = torch.cat([nodes, new])
        position[new.long()] = torch.arange(len(nodes), len(every), dtype=torch.int32)
        indices = torch.index_select(position, 0, sampled.sources)
        position[every.long()] = -1
        return every, indices


class NeighborSampler(Adjacency):
    """Adjacency of this machine's part and of some remote nodes. Other nodes are sampled by their servers.

    Args:
        graph: homogeneous ``DistGraph`` of a running job.
        budget: bytes for the adjacency of remote nodes.
        hops: number of sampled hops. Lists of nodes that are further away are never read.

    Attributes:
        own: IDs of this part's nodes, a range.
        remote_nodes: number of remote nodes whose lists are here.
        remote_bytes: size of their lists.
    """

    def __init__(self, graph: Any, budget: int, hops: int) -> None:
        self.book = graph.get_partition_book()
        ids = self.book.partid2nids(self.book.partid)
        self.own = range(int(ids[0]), int(ids[-1]) + 1) if len(ids) else range(0)
        self._seed, self._hop = 0, 0
        indptr, indices, global_ids = in_edges_of_part(graph.local_partition, len(self.own))
        sources = torch.empty(len(indices), dtype=id_type(graph.num_nodes()))
        for at in range(0, len(indices), EDGES_AT_ONCE):  # int64 copies of all edges would double the peak
            sources[at : at + EDGES_AT_ONCE] = global_ids[indices[at : at + EDGES_AT_ONCE].long()]
        lists = most_used(lambda ids: fetch_neighbors(self.book, ids), self.own, sources, hops - 1, budget)
        self._remote, indptr, sources = append_lists(indptr, sources, lists)
        self.remote_nodes = len(self._remote)
        self.remote_bytes = (len(sources) - int(indptr[len(self.own)])) * sources.element_size()
        super().__init__(indptr, sources, graph.num_nodes())

    def seed(self, seed: int) -> None:
        """Seed DGL's generator of the calling thread, and the next requests to servers of other machines."""
        super().seed(seed)
        self._seed, self._hop = seed, 0

    def list_of(self, nodes: Tensor) -> Tensor:
        """Return the int64 index of each node's list, or -1 if the list is not on this machine."""
        nodes = nodes.long()
        found = nodes - self.own.start
        remote = (found < 0) | (found >= len(self.own))
        if bool(remote.any()):
            ids = nodes[remote]
            at = torch.searchsorted(self._remote, ids)
            here = at < len(self._remote)
            here[here.clone()] = self._remote[at[here]] == ids[here]
            found[remote] = torch.where(here, len(self.own) + at, -1)
        return found

    def sample(self, nodes: Tensor, fanout: int) -> Neighbors:
        """Sample in-neighbors without replacement.

        The servers of other machines sample at the same time as this process.

        Args:
            nodes: different global node IDs.
            fanout: neighbors per node. Nodes with fewer neighbors get all of them, and -1 takes all.
        """
        lists = self.list_of(nodes)
        self._hop += 1
        known = lists >= 0
        if bool(known.all()):
            return self.sample_lists(lists, fanout)
        value = derive_seed(self._seed, self._hop)
        sent, _ = request(self.book, nodes[~known].long(), lambda ids: SampleRequest(ids, fanout, value))
        here = self.sample_lists(lists[known], fanout)
        parts = [(known.nonzero().flatten(), here.indptr.diff(), here.sources)]
        self.scratch[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        for answer in receive(sent, "sampled neighbors"):
            at, order = self.scratch[answer.destinations].long().sort(stable=True)
            positions, counts = at.unique_consecutive(return_counts=True)
            parts.append((positions, counts, answer.sources[order]))
        self.scratch[nodes.long()] = -1
        indptr, sources = merge_lists(parts, len(nodes), self.dtype)
        return Neighbors(indptr.int(), sources)

    def all_neighbors(self, nodes: Tensor) -> Neighbors:
        """Return all in-neighbors of nodes whose lists are on this machine."""
        return self.whole_lists(self.list_of(nodes))


def most_used(
    fetch: Callable[[Tensor], tuple[Tensor, Tensor]], own: range, sources: Tensor, rounds: int, budget: int
) -> list[Lists]:
    """Fetch the adjacency of remote nodes, the most used first, until the budget is spent.

    The first round fetches remote nodes with edges into this part, the second one their remote neighbors, and so on.

    Args:
        fetch: returns the number of neighbors of each of some nodes, and all neighbors.
        own: IDs of this part's nodes.
        sources: sources of the edges into this part.
        rounds: number of rounds.
        budget: bytes for neighbor IDs.
    """
    lists: list[Lists] = []
    done = torch.empty(0, dtype=torch.int64)
    for _ in range(rounds):
        wanted, uses = torch.unique(sources[(sources < own.start) | (sources >= own.stop)], return_counts=True)
        new = ~torch.isin(wanted, done)
        wanted = wanted[new][torch.argsort(uses[new], descending=True, stable=True)].long()
        before = len(lists)
        for ids in wanted.split(NODES_PER_REQUEST):
            if budget <= 0:
                return lists
            counts, found = fetch(ids)
            size = torch.cumsum(counts, 0) * sources.element_size()
            fits = int((size <= budget).sum())
            lists.append((ids[:fits], counts[:fits], found[: int(counts[:fits].sum())].to(sources.dtype)))
            budget -= int(size[fits - 1]) if fits else 0
            if fits < len(ids):
                return lists
        done = torch.cat([done, wanted])
        sources = torch.cat([sources[:0], *(found for _, _, found in lists[before:])])
    return lists


def append_lists(indptr: Tensor, sources: Tensor, lists: list[Lists]) -> tuple[Tensor, Tensor, Tensor]:
    """Append adjacency lists, ordered by node ID, to those of this part.

    Returns:
        int64 IDs of the appended nodes, indptr of all lists, and all sources.
    """
    if not lists:
        return torch.empty(0, dtype=torch.int64), indptr.long(), sources
    ids, counts, found = (torch.cat(parts) for parts in zip(*lists, strict=True))
    order = torch.argsort(ids)
    begin, counts = offsets(counts)[order], counts[order]
    ends = len(sources) + torch.cumsum(counts, 0)
    return ids[order], torch.cat([indptr.long(), ends]), torch.cat([sources, found[ranges(begin, counts)]])


def offsets(counts: Tensor) -> Tensor:
    """Return the CSC index pointer of lists with the given lengths."""
    return F.pad(torch.cumsum(counts, 0), (1, 0))
