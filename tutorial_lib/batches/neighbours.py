"""Lists of in-neighbours on this machine, and drawing from them.

The servers hold the lists of each machine's own nodes. A batch of three hops also needs those of remote nodes: of the
halo, and of its neighbours. Here the lists of the remote nodes that are used most are kept on this machine as well, as
far as memory is given; the other remote nodes are drawn by the servers that hold them, as DGL does it.

Which lists are kept depends on the partition and on the memory alone, not on what was drawn so far: else a run that was
resumed, and begins with nothing kept, would draw other neighbours than one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dgl
import torch
import torch.nn.functional as F
from dgl.distributed.graph_services import SamplingRequest
from torch import Tensor

from tutorial_lib.batches.service import (
    answers_to,
    ask,
    id_type,
    in_edges_of_part,
    is_graphbolt,
    lists_of,
    put_together,
    ranges,
)

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


class HereLists:
    """Lists of neighbours in this process's memory, by number.

    Args:
        indptr, sources: int64 (L + 1,) and ids of nodes: list k is ``sources[indptr[k] : indptr[k + 1]]``.
        n: nodes of the graph.
        graphbolt: draw with GraphBolt, else with DGL: the same probabilities, other numbers.

    Attributes:
        dtype: of node ids: int32 where all of them fit.
        scratch: int32 (N,), -1 but while a method uses it. With what `RowTable` knows of each node the only memory
            that stays and grows with the whole graph.
        seed: seeds the generator of the thread that draws.
    """

    def __init__(self, indptr: Tensor, sources: Tensor, n: int, *, graphbolt: bool = True) -> None:
        self.indptr, self.sources, self.graphbolt, self.dtype = indptr, sources, graphbolt, sources.dtype
        self.scratch = torch.full((n,), -1, dtype=torch.int32)
        self._graph: Any  # DGL says the types of its samplers wrong
        if graphbolt:
            from dgl import graphbolt as gb

            self.seed, self._graph = gb.seed, gb.fused_csc_sampling_graph(indptr, sources)
        else:
            wide = id_type(max(n, len(sources)))
            parts = (indptr.to(wide), sources.to(wide), torch.empty(0, dtype=wide))
            sizes = {"node": n, "list": len(indptr) - 1}
            self.seed, self._graph = dgl.seed, dgl.heterograph({("node", "in", "list"): ("csc", parts)}, sizes)

    def draw_here(self, lists: Tensor, fanout: int) -> Drawn:
        """``fanout`` neighbours from each list, without repetition, or all where there are no more; -1: all."""
        if self.graphbolt:
            drawn = self._graph.sample_neighbors(lists.to(self.dtype), torch.tensor([fanout])).sampled_csc
            return Drawn(drawn.indptr.int(), drawn.indices)
        wanted = {"list": lists.to(self._graph.idtype)}
        drawn: Any = dgl.sampling.sample_neighbors(self._graph, wanted, fanout, _dist_training=True)
        source, destination = drawn.edges()
        # DGL answers list by list, in their order; lists without neighbours are not among the answers.
        present, counts = destination.unique_consecutive(return_counts=True)
        at = torch.zeros(len(lists) + 1, dtype=torch.int64)
        at[1:][torch.isin(lists, present.long())] = counts
        return Drawn(torch.cumsum(at, 0).int(), source.to(self.dtype))

    def whole_lists(self, lists: Tensor) -> Drawn:
        """All neighbours in lists (int64 numbers)."""
        begin = self.indptr[lists]
        counts = self.indptr[lists + 1] - begin
        sources = torch.index_select(self.sources, 0, ranges(begin, counts))
        return Drawn(F.pad(torch.cumsum(counts, 0), (1, 0)).int(), sources)

    def compact(self, drawn: Drawn, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Number the nodes of a hop.

        Args:
            nodes: the D nodes whose edges were drawn, each once.

        Returns:
            All nodes of the hop, ``nodes`` first and the others by id; int32 (E,) the place of each source among them.
        """
        place = self.scratch
        place[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        new = torch.unique(drawn.sources[torch.index_select(place, 0, drawn.sources) < 0])
        every = torch.cat([nodes, new])
        place[new.long()] = torch.arange(len(nodes), len(every), dtype=torch.int32)
        indices = torch.index_select(place, 0, drawn.sources)
        place[every.long()] = -1
        return every, indices


class NeighbourLists(HereLists):
    """In-neighbours of all nodes of this part and of some remote ones.

    Args:
        graph: a ``DistGraph`` of a running job, homogeneous.
        budget: bytes for lists of remote nodes.
        hops: of the batches that are drawn; the lists of nodes that are further away are of no use.
        graphbolt: as of `HereLists`.

    Attributes:
        own: ids of this part, one range.
        remote_nodes, remote_bytes: how many remote lists are kept, and their size.
    """

    def __init__(self, graph: Any, budget: int, hops: int, *, graphbolt: bool = True) -> None:
        self.book = graph.get_partition_book()
        self.own = range_of(self.book.partid2nids(self.book.partid))
        self._dist_graph = graph

        indptr, indices, ids = in_edges_of_part(graph.local_partition, len(self.own))
        sources = torch.empty(len(indices), dtype=id_type(graph.num_nodes()))
        for at in range(0, len(indices), PIECE):  # the halo's local ids say nothing to other machines
            sources[at : at + PIECE] = ids[indices[at : at + PIECE].long()]
        kept = most_used(lambda ids: lists_of(self.book, ids), self.own, sources, hops - 1, budget)
        self._kept, indptr, sources = joined(indptr, sources, kept)
        self.remote_nodes = len(self._kept)
        self.remote_bytes = (len(sources) - int(indptr[len(self.own)])) * sources.element_size()
        super().__init__(indptr, sources, graph.num_nodes(), graphbolt=graphbolt)

    def list_of(self, nodes: Tensor) -> Tensor:
        """int64: the number of each node's list, those of this part first; -1 where it is not here."""
        nodes = nodes.long()
        found = nodes - self.own.start
        other = (found < 0) | (found >= len(self.own))
        if bool(other.any()):
            far = nodes[other]
            at = torch.searchsorted(self._kept, far)
            here = at < len(self._kept)
            here[here.clone()] = self._kept[at[here]] == far[here]
            found[other] = torch.where(here, len(self.own) + at, -1)
        return found

    def draw(self, nodes: Tensor, fanout: int) -> Drawn:
        """``fanout`` neighbours of each node, without repetition, or all where there are no more; -1: all.

        Nodes whose lists are not here are drawn by their own machines in the meantime.
        """
        lists = self.list_of(nodes)
        known = lists >= 0
        if bool(known.all()):
            return self.draw_here(lists, fanout)
        compact = is_graphbolt(self._dist_graph.local_partition)  # and so have the servers
        asked, _ = ask(self.book, nodes[~known].long(), lambda ids: SamplingRequest(ids, fanout, use_graphbolt=compact))
        here = self.draw_here(lists[known], fanout)
        pieces = [(known.nonzero().flatten(), here.indptr.diff(), here.sources)]
        self.scratch[nodes.long()] = torch.arange(len(nodes), dtype=torch.int32)
        for answer in answers_to(asked, "sampled neighbours"):
            at, order = self.scratch[answer.global_dst].long().sort(stable=True)
            places, counts = at.unique_consecutive(return_counts=True)
            pieces.append((places, counts, answer.global_src[order]))
        self.scratch[nodes.long()] = -1
        indptr, sources = put_together(pieces, len(nodes), self.dtype)
        return Drawn(indptr.int(), sources)

    def whole(self, nodes: Tensor) -> Drawn:
        """All neighbours of nodes (int64) whose lists are here."""
        return self.whole_lists(self.list_of(nodes))


# Lists of some nodes: int64 ids, int64 number of neighbours of each, all neighbours.
Lists = tuple[Tensor, Tensor, Tensor]


def range_of(ids: Tensor) -> range:
    """The ids of a part, which follow one another."""
    return range(int(ids[0]), int(ids[-1]) + 1) if len(ids) else range(0)


def most_used(
    take: Callable[[Tensor], tuple[Tensor, Tensor]], own: range, sources: Tensor, rounds: int, budget: int
) -> list[Lists]:
    """Lists of remote nodes, the most used first, until the budget is spent.

    Round 1: remote nodes with edges into this part. Round 2: those with edges into the former; and so on.

    Args:
        take: number of neighbours of each of some nodes, and all of them: ``lists_of`` the machines that have them.
        own: the nodes of this part.
        sources: of the edges into this part.
        budget: bytes for neighbours.
    """
    kept: list[Lists] = []
    have = torch.empty(0, dtype=torch.int64)
    for _ in range(rounds):
        remote = sources[(sources < own.start) | (sources >= own.stop)]
        wanted, used = torch.unique(remote, return_counts=True)
        new = ~torch.isin(wanted, have)
        wanted, used = wanted[new].long(), used[new]
        wanted = wanted[torch.argsort(used, descending=True, stable=True)]
        before = len(kept)
        for ids in wanted.split(ASKED_AT_ONCE):
            if budget <= 0:
                return kept
            counts, found = take(ids)
            size = torch.cumsum(counts, 0) * sources.element_size()
            fits = int((size <= budget).sum())
            kept.append((ids[:fits], counts[:fits], found[: int(counts[:fits].sum())].to(sources.dtype)))
            budget -= int(size[fits - 1]) if fits else 0
            if fits < len(ids):
                return kept
        have = torch.cat([have, wanted])  # none of them was left out
        sources = torch.cat([sources[:0], *(found for _, _, found in kept[before:])])
    return kept


def joined(indptr: Tensor, sources: Tensor, kept: list[Lists]) -> tuple[Tensor, Tensor, Tensor]:
    """The lists of this part, and behind them the others by the id of their node.

    Returns:
        int64 (K,) ids of the others; indptr int64, of all; sources.
    """
    if not kept:
        return torch.empty(0, dtype=torch.int64), indptr.long(), sources
    ids, counts, found = (torch.cat(pieces) for pieces in zip(*kept, strict=True))
    order = torch.argsort(ids)
    begin = torch.cumsum(counts, 0) - counts
    ends = len(sources) + torch.cumsum(counts[order], 0)
    return (
        ids[order],
        torch.cat([indptr.long(), ends]),
        torch.cat([sources, found[ranges(begin[order], counts[order])]]),
    )
