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

import torch
from torch import Tensor

from tutorial_lib.batches.service import answers_to, in_edges_of_part, lists_of, ranges

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
        remote_nodes, remote_bytes: how many remote lists are kept, and their size.
    """

    def __init__(self, graph: Any, budget: int, hops: int, *, graphbolt: bool = True) -> None:
        self.graph, self.book = graph, graph.get_partition_book()
        n = graph.num_nodes()
        self.dtype = torch.int32 if n < 2**31 else torch.int64
        own = self.book.partid2nids(self.book.partid)
        self.begin, self.end = (int(own[0]), int(own[-1]) + 1) if len(own) else (0, 0)
        indptr, indices, ids = in_edges_of_part(graph.local_partition, len(own))
        sources = torch.empty(len(indices), dtype=self.dtype)
        for at in range(0, len(indices), PIECE):  # the halo's local ids say nothing to other machines
            sources[at : at + PIECE] = ids[indices[at : at + PIECE].long()]
        kept = _Kept(self.book, n, self.begin, self.end, budget)
        kept.take_the_most_used(sources, rounds=hops - 1)
        self.remote_nodes, self.remote_bytes = kept.nodes, kept.bytes
        self.indptr, self.sources = kept.merged_with(indptr, sources)
        self.known = torch.zeros(n, dtype=torch.bool)
        self.known[self.begin : self.end] = True
        self.known[kept.ids()] = True
        self._place = torch.full((n,), -1, dtype=torch.int32)  # of a node among others; -1 again after each use
        self._sampler = (_GraphBolt if graphbolt else _DGL)(self.indptr, self.sources)

    def seed(self, value: int) -> None:
        """Seed the generator of the thread that draws."""
        self._sampler.seed(value)

    def draw(self, nodes: Tensor, fanout: int) -> Drawn:
        """``fanout`` neighbours of each node, without repetition, or all where there are no more; -1: all.

        Nodes whose lists are not here are drawn by their own machines in the meantime.
        """
        known = torch.index_select(self.known, 0, nodes)
        if bool(known.all()):
            return self._sampler.draw(nodes, fanout)
        asked = self._ask(nodes[~known].long(), fanout)
        here = self._sampler.draw(nodes[known], fanout)
        counts = torch.zeros(len(nodes), dtype=torch.int64)
        counts[known] = (here.indptr[1:] - here.indptr[:-1]).long()
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

    def _ask(self, ids: Tensor, fanout: int) -> dict[int, int]:
        """Send the requests; what ``answers_to`` takes."""
        from dgl.distributed import rpc
        from dgl.distributed.graph_services import SamplingRequest

        part_of = self.book.nid2partid(ids)
        requests = [(part, SamplingRequest(ids[part_of == part], fanout)) for part in part_of.unique().tolist()]
        return rpc.send_requests_to_machine(requests)


class _GraphBolt:
    """GraphBolt's sampler."""

    def __init__(self, indptr: Tensor, sources: Tensor) -> None:
        import dgl.graphbolt as gb

        self.seed = gb.seed
        self.graph = gb.fused_csc_sampling_graph(indptr, sources)

    def draw(self, nodes: Tensor, fanout: int) -> Drawn:
        """See ``NeighbourLists.draw``."""
        drawn = self.graph.sample_neighbors(nodes, torch.tensor([fanout])).sampled_csc
        return Drawn(drawn.indptr.int(), drawn.indices)


class _DGL:
    """DGL's sampler, for a stack without GraphBolt."""

    def __init__(self, indptr: Tensor, sources: Tensor) -> None:
        import dgl

        self.seed = dgl.seed
        wide = torch.int32 if len(sources) < 2**31 and sources.dtype == torch.int32 else torch.int64
        parts = (indptr.to(wide), sources.to(wide), torch.empty(0, dtype=wide))
        self.graph = dgl.graph(("csc", parts), num_nodes=len(indptr) - 1)

    def draw(self, nodes: Tensor, fanout: int) -> Drawn:
        """See ``NeighbourLists.draw``. DGL answers node by node, in the order of ``nodes``."""
        import dgl

        drawn = dgl.sampling.sample_neighbors(self.graph, nodes.to(self.graph.idtype), fanout, _dist_training=True)
        source, destination = drawn.edges()
        present, counts = destination.unique_consecutive(return_counts=True)
        at = torch.zeros(len(nodes) + 1, dtype=torch.int64)
        at[1:][torch.isin(nodes, present)] = counts  # nodes without neighbours are not among the answers
        return Drawn(torch.cumsum(at, 0).int(), source.to(nodes.dtype))


class _Kept:
    """Remote lists that are taken over, the most used first, until the budget is spent."""

    def __init__(self, book: Any, n: int, begin: int, end: int, budget: int) -> None:
        self.book, self.n, self.begin, self.end, self.budget = book, n, begin, end, budget
        self.lists: list[tuple[Tensor, Tensor, Tensor]] = []  # ids, counts, sources
        self.nodes = self.bytes = 0

    def ids(self) -> Tensor:
        """int64, in the order in which they were taken."""
        return torch.cat([ids for ids, _, _ in self.lists]) if self.lists else torch.empty(0, dtype=torch.int64)

    def take_the_most_used(self, sources: Tensor, rounds: int) -> None:
        """Round 1: remote nodes with edges into this part. Round 2: those with edges into the former; and so on."""
        have = torch.zeros(self.n, dtype=torch.bool)
        have[self.begin : self.end] = True
        for _ in range(rounds):
            used = torch.bincount(sources, minlength=self.n) if len(sources) else torch.zeros(self.n)
            used[have] = 0
            wanted = used.nonzero().flatten()
            wanted = wanted[torch.argsort(used[wanted], descending=True, stable=True)]
            before = len(self.lists)
            for ids in wanted.split(ASKED_AT_ONCE):
                if not self._take(ids, sources.dtype):
                    return
            have[wanted] = True
            new = [found for _, _, found in self.lists[before:]]
            sources = torch.cat(new) if new else sources[:0]

    def _take(self, ids: Tensor, dtype: torch.dtype) -> bool:
        """Ask for lists; False when the budget is spent."""
        if self.bytes >= self.budget:
            return False
        counts, sources = lists_of(self.book, ids)
        size = torch.cumsum(counts, 0) * torch.tensor([], dtype=dtype).element_size() + self.bytes
        fits = int((size <= self.budget).sum())
        self.lists.append((ids[:fits], counts[:fits], sources[: int(counts[:fits].sum())].to(dtype)))
        self.nodes += fits
        self.bytes = int(size[fits - 1]) if fits else self.bytes
        return fits == len(ids)

    def merged_with(self, own_indptr: Tensor, own_sources: Tensor) -> tuple[Tensor, Tensor]:
        """One list of lists over all N nodes, empty where nothing is known: indptr int64 (N + 1,), sources."""
        counts = torch.zeros(self.n, dtype=torch.int64)
        counts[self.begin : self.end] = (own_indptr[1:] - own_indptr[:-1]).long()
        for ids, number, _ in self.lists:
            counts[ids] = number
        indptr = torch.zeros(self.n + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=indptr[1:])
        sources = torch.empty(int(indptr[-1]), dtype=own_sources.dtype)
        sources[int(indptr[self.begin]) : int(indptr[self.end])] = own_sources
        for ids, number, found in self.lists:
            sources[ranges(indptr[ids], number)] = found
        return indptr, sources
