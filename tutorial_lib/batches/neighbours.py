"""Lists of in-neighbours on this machine, and drawing from them.

The servers hold the lists of each machine's own nodes. A batch of three hops also needs those of remote nodes: of the
halo, and of its neighbours. Here the lists of the remote nodes that are used most are kept on this machine as well, as
far as memory is given; the other remote nodes are drawn by the servers that hold them, as DGL does it.

Which lists are kept depends on the partition and on the memory alone, not on what was drawn so far: else a run that was
resumed, and begins with nothing kept, would draw other neighbours than one that was not interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl.distributed import rpc
from dgl.distributed.graph_services import SamplingRequest
from torch import Tensor

from tutorial_lib.batches.service import answers_to, ask, id_type, in_edges_of_part, lists_of, ranges, seed_servers

ASKED_AT_ONCE = 8192  # nodes
PIECE = 8 * 2**20  # edges converted at a time


@dataclass(frozen=True)
class Drawn:
    """Sampled in-edges of some nodes.

    Attributes:
        indptr: int32 (D + 1,): the edges into node d are ``indptr[d]`` to ``indptr[d + 1] - 1``.
        sources: int32 or int64 (E,) node ids.
    """

    indptr: Tensor
    sources: Tensor


class NeighbourLists:
    """In-neighbours of all nodes of this part and of some remote ones.

    Args:
        graph: a ``DistGraph`` of a running job, homogeneous.
        budget: bytes for lists of remote nodes.
        hops: of the batches that are drawn; the lists of nodes that are further away are of no use.
        graphbolt: draw with GraphBolt, else with DGL: the same probabilities, other numbers.

    Attributes:
        known: bool (N,), nodes whose list is here.
        dtype: of node ids: int32 where all of them fit.
        seed: seeds the generator of the thread that draws.
        remote_nodes, remote_bytes: how many remote lists are kept, and their size.
    """

    def __init__(self, graph: Any, budget: int, hops: int, *, graphbolt: bool = True) -> None:
        self.graphbolt, self.book = graphbolt, graph.get_partition_book()
        n = graph.num_nodes()
        self.dtype = id_type(n)
        own = self.book.partid2nids(self.book.partid)
        begin = int(own[0]) if len(own) else 0
        indptr, indices, ids = in_edges_of_part(graph.local_partition, len(own))
        sources = torch.empty(len(indices), dtype=self.dtype)
        for at in range(0, len(indices), PIECE):  # the halo's local ids say nothing to other machines
            sources[at : at + PIECE] = ids[indices[at : at + PIECE].long()]
        self.known = torch.zeros(n, dtype=torch.bool)
        self.known[begin : begin + len(own)] = True
        kept = most_used(self.book, self.known, sources, hops - 1, budget)
        self.remote_nodes = sum(len(ids) for ids, _, _ in kept)
        self.remote_bytes = sum(found.nbytes for _, _, found in kept)
        self.indptr, self.sources = joined(n, begin, indptr, sources, kept)
        self._place = torch.full((n,), -1, dtype=torch.int32)  # of a node among others; -1 again after each use
        self._graph: Any  # DGL says the types of its samplers wrong
        if graphbolt:
            from dgl import graphbolt as gb

            self.seed, self._graph = gb.seed, gb.fused_csc_sampling_graph(self.indptr, self.sources)
        else:
            wide = id_type(max(n, len(self.sources)))
            parts = (self.indptr.to(wide), self.sources.to(wide), torch.empty(0, dtype=wide))
            self.seed, self._graph = dgl.seed, dgl.graph(("csc", parts), num_nodes=n)

    def seed_all(self, seed: int) -> None:
        """Seed what draws: here, and the servers of other machines."""
        self.seed(seed)
        servers = rpc.get_num_server()
        of_each = servers // self.book.num_partitions()
        seed_servers({k: (seed + 1 + k) % 2**31 for k in range(servers) if k // of_each != self.book.partid})

    def draw(self, nodes: Tensor, fanout: int) -> Drawn:
        """``fanout`` neighbours of each node, without repetition, or all where there are no more; -1: all.

        Nodes whose lists are not here are drawn by their own machines in the meantime.
        """
        known = torch.index_select(self.known, 0, nodes)
        if bool(known.all()):
            return self._draw_here(nodes, fanout)
        asked, _ = ask(self.book, nodes[~known].long(), lambda ids: SamplingRequest(ids, fanout))
        here = self._draw_here(nodes[known], fanout)
        counts = torch.zeros(len(nodes), dtype=torch.int64)
        counts[known] = here.indptr.diff().long()
        answers = []
        self._place[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        for answer in answers_to(asked, "sampled neighbours"):
            at = self._place[answer.global_dst].long()
            order = torch.argsort(at, stable=True)
            counts += torch.bincount(at, minlength=len(nodes))
            answers.append((at[order], answer.global_src[order]))
        self._place[nodes.long()] = -1
        end = torch.cumsum(counts, 0)
        begin = end - counts
        sources = torch.empty(int(counts.sum()), dtype=self.dtype)
        sources[ranges(begin[known], counts[known])] = here.sources
        for at, source in answers:
            columns = at.unique_consecutive()
            sources[ranges(begin[columns], counts[columns])] = source.to(self.dtype)
        return Drawn(torch.cat([torch.zeros(1, dtype=torch.int64), end]).int(), sources)

    def _draw_here(self, nodes: Tensor, fanout: int) -> Drawn:
        """``draw`` from the lists that are here."""
        if self.graphbolt:
            drawn = self._graph.sample_neighbors(nodes, torch.tensor([fanout])).sampled_csc
            return Drawn(drawn.indptr.int(), drawn.indices)
        wanted = nodes.to(self._graph.idtype)
        drawn: Any = dgl.sampling.sample_neighbors(self._graph, wanted, fanout, _dist_training=True)
        source, destination = drawn.edges()
        # DGL answers node by node, in the order of ``nodes``; nodes without neighbours are not among the answers.
        present, counts = destination.unique_consecutive(return_counts=True)
        at = torch.zeros(len(nodes) + 1, dtype=torch.int64)
        at[1:][torch.isin(nodes, present)] = counts
        return Drawn(torch.cumsum(at, 0).int(), source.to(nodes.dtype))

    def whole(self, nodes: Tensor) -> Drawn:
        """All neighbours of nodes (int64) whose lists are here."""
        begin = self.indptr[nodes]
        counts = self.indptr[nodes + 1] - begin
        indptr = torch.zeros(len(nodes) + 1, dtype=torch.int32)
        indptr[1:] = torch.cumsum(counts, 0)
        return Drawn(indptr, self.sources[ranges(begin, counts)])

    def compact(self, drawn: Drawn, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Number the nodes of a hop.

        Args:
            nodes: the D nodes whose edges were drawn, each once.

        Returns:
            All nodes of the hop, ``nodes`` first and the others by id; int32 (E,) the place of each source among them.
        """
        place = self._place
        place[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        new = torch.unique(drawn.sources[torch.index_select(place, 0, drawn.sources) < 0])
        every = torch.cat([nodes, new])
        place[new.long()] = torch.arange(len(nodes), len(every), dtype=torch.int32)
        indices = torch.index_select(place, 0, drawn.sources)
        place[every.long()] = -1
        return every, indices


# Lists of some nodes: int64 ids, int64 number of neighbours of each, all neighbours.
Lists = tuple[Tensor, Tensor, Tensor]


def most_used(book: Any, have: Tensor, sources: Tensor, rounds: int, budget: int) -> list[Lists]:
    """Lists of remote nodes, the most used first, until the budget is spent.

    Round 1: remote nodes with edges into this part. Round 2: those with edges into the former; and so on.

    Args:
        have: bool (N,), the nodes of this part; those whose lists are taken are added.
        sources: of the edges into this part.
        budget: bytes for neighbours.
    """
    kept: list[Lists] = []
    for _ in range(rounds):
        used = torch.bincount(sources, minlength=len(have))
        used[have] = 0
        wanted = used.nonzero().flatten()
        wanted = wanted[torch.argsort(used[wanted], descending=True, stable=True)]
        before = len(kept)
        for ids in wanted.split(ASKED_AT_ONCE):
            if budget <= 0:
                return kept
            counts, found = lists_of(book, ids)
            size = torch.cumsum(counts, 0) * sources.element_size()
            fits = int((size <= budget).sum())
            have[ids[:fits]] = True
            kept.append((ids[:fits], counts[:fits], found[: int(counts[:fits].sum())].to(sources.dtype)))
            budget -= int(size[fits - 1]) if fits else 0
            if fits < len(ids):
                return kept
        sources = torch.cat([found for _, _, found in kept[before:]])
    return kept


def joined(n: int, begin: int, indptr: Tensor, sources: Tensor, kept: list[Lists]) -> tuple[Tensor, Tensor]:
    """One list of lists over all N nodes, empty where nothing is known: indptr int64 (N + 1,), sources.

    Args:
        begin: the first node of this part, whose lists are ``indptr`` and ``sources``.
    """
    counts = torch.zeros(n, dtype=torch.int64)
    counts[begin : begin + len(indptr) - 1] = indptr.diff().long()
    for ids, number, _ in kept:
        counts[ids] = number
    every = torch.zeros(n + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=every[1:])
    found = torch.empty(int(every[-1]), dtype=sources.dtype)
    found[int(every[begin]) :][: len(sources)] = sources
    for ids, number, theirs in kept:
        found[ranges(every[ids], number)] = theirs
    return every, found
