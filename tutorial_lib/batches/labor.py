"""Neighbours drawn as LABOR does it, alike wherever they are drawn: nodes of a batch prefer the same neighbours.

Every node has a random number for each hop of a batch, and each list gives the neighbours with the smallest numbers.
A node with a small number is then drawn by all whose neighbour it is, so that a batch reaches fewer nodes than with
draws that know nothing of each other; yet for one list every choice is as likely as the other, so that its mean is
right on average, with the same variance. (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023, arXiv
2210.13339, as GraphBolt draws with equal weights: as many neighbours as the fan-out says.)

The number of a node is a hash of the batch's seed and its id. So trainers and servers agree without a message.
With ``batch_dependency`` K, the numbers of consecutive batches move slowly, and are others after K batches (arXiv
2310.12403): what one batch has pulled, the next one needs again. Then two batches are no longer independent.

The request for such neighbours of nodes of another machine also brings all of them, when no fan-out limits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dgl.distributed import rpc
from torch import Tensor

from tutorial_lib.batches.edges import GOLDEN, mix
from tutorial_lib.batches.service import Message, all_lists, answers_to, ask, id_type, ranges, repeated

SERVICE = 770002  # DGL's own services use other numbers
BITS = 40  # of a node's number; two of some hundred neighbours are hardly ever the same
PIECE = 2**20  # nodes
LISTS_AT_ONCE = 8192  # so that all their neighbours take a few megabytes


@dataclass(frozen=True)
class Variates:
    """The random numbers of all nodes for one hop of one batch.

    Attributes:
        first, second: seeds.
        share: 0 (the numbers are those of ``first``) up to 1 (those of ``second``).
    """

    first: int
    second: int = 0
    share: float = 0.0

    @classmethod
    def of(cls, seed: int, batch: int, hop: int, dependency: int = 1) -> Variates:
        """For a hop of batch number ``batch`` of an iteration that has a seed."""
        period, at = divmod(batch, dependency)
        first, second = (mixed(mixed(mixed(seed, 0), hop), period + k) for k in (0, 1))
        return cls(first, second, at / dependency)

    def ready_for(self, n: int, reads: int) -> Variates | VariatesTable:
        """Itself, or a table of the numbers of all ``n`` nodes where there are fewer of them than will be read."""
        if reads <= n:
            return self
        exact, rough = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.int16)
        for at in range(0, n, PIECE):
            exact[at : at + PIECE] = numbers = self(torch.arange(at, min(n, at + PIECE)))
            rough[at : at + PIECE] = coarse(numbers)
        return VariatesTable(exact, rough)

    def rough(self, nodes: Tensor) -> Tensor:
        """int16: ``coarse`` of the numbers of the nodes."""
        return coarse(self(nodes))

    def __call__(self, nodes: Tensor) -> Tensor:
        """float64 in [0, 1), one for each of the nodes."""
        found = uniform(self.first, nodes)
        if not self.share:
            return found
        angle = self.share * math.pi / 2
        normal = torch.special.ndtri(found) * math.cos(angle)
        normal += torch.special.ndtri(uniform(self.second, nodes)) * math.sin(angle)
        return torch.special.ndtr(normal).clamp(max=1 - 2.0**-BITS)


@dataclass(frozen=True)
class VariatesTable:
    """``Variates`` that are there already: float64 and int16 (N,)."""

    of_all: Tensor
    rough_of_all: Tensor

    def rough(self, nodes: Tensor) -> Tensor:
        """See ``Variates.rough``."""
        return torch.index_select(self.rough_of_all, 0, nodes)

    def __call__(self, nodes: Tensor) -> Tensor:
        """See ``Variates``."""
        return torch.index_select(self.of_all, 0, nodes)


def coarse(numbers: Tensor) -> Tensor:
    """int16: numbers from 0 to 1, or above, in steps of 2^-15; what is smaller does not become larger."""
    return (numbers * 2**15).clamp(max=2**15 - 1).short()


def uniform(seed: int, nodes: Tensor) -> Tensor:
    """float64 in (0, 1), neither of the two."""
    return mixed(nodes.long(), seed).bitwise_and_(2**BITS - 1).double().add_(0.5).mul_(2.0**-BITS)


def mixed(value: Any, seed: int) -> Any:
    """A hash of 62 bits of a whole number, or of each in an int64 tensor."""
    whole = isinstance(value, int)
    numbers = np.array([value]) if whole else value.numpy()
    found = mix(numbers.view(np.uint64) + np.uint64((seed + 1) * int(GOLDEN) % 2**64)) & np.uint64(2**62 - 1)
    return int(found[0]) if whole else torch.from_numpy(found.view(np.int64))


def smallest(counts: Tensor, sources: Tensor, fanout: int, variates: Variates | VariatesTable) -> tuple[Tensor, Tensor]:
    """From each list the ``fanout`` neighbours with the smallest numbers, by them; short lists whole; -1: all.

    Args:
        counts: int64 (D,) neighbours of each list; sources: (E,) all of them, list after list.

    Returns:
        int64 (D,) how many each list gives; their ids.
    """
    if fanout < 0:
        return counts, sources
    # Sorting takes longest, and then whatever is done with each neighbour. Nearly always the numbers in question are
    # below ``likely``, and 16 bits tell that; where they are not, the whole list is sorted.
    likely = coarse((fanout + 5 * math.sqrt(fanout) + 5) / counts.clamp(min=1))
    near = variates.rough(sources) <= repeated(likely, counts)
    of = repeated(torch.arange(len(counts), dtype=torch.int32), counts)
    taken = counts.clamp(max=fanout)
    while True:
        at = torch.from_numpy(np.flatnonzero(near.numpy()))  # twice as fast as torch's
        lists = of[at].long()
        found = torch.bincount(lists, minlength=len(counts))
        few = found < taken
        if not few.any():
            break
        near |= torch.index_select(few, 0, of)
    order = torch.argsort((lists << BITS) | (variates(sources[at]) * 2**BITS).long(), stable=True)
    return taken, sources[at[order[ranges(torch.cumsum(found, 0) - found, taken)]]]


@dataclass(eq=False)
class ListsRequest(Message, rpc.Request):
    """Asks a machine for ``smallest`` of the lists of nodes of its part; ``variates``: the fields of ``Variates``."""

    ids: Tensor
    fanout: int = -1
    variates: tuple[Any, ...] = (0,)

    def process_request(self, server_state: Any) -> ListsResponse:
        """Runs in the server."""
        counts, sources = [], []
        for ids in self.ids.split(LISTS_AT_ONCE):
            taken, found = smallest(*all_lists(server_state, ids), self.fanout, Variates(*self.variates))
            counts.append(taken.int())
            sources.append(found)
        found = torch.cat(sources)
        return ListsResponse(found.to(id_type(len(found) and int(found.max()))), torch.cat(counts))


@dataclass(eq=False)
class ListsResponse(Message, rpc.Response):
    """The neighbours, and how many each node has."""

    sources: Tensor
    counts: Tensor


rpc.register_service(SERVICE, ListsRequest, ListsResponse)


def lists_of(book: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """In-neighbours of remote nodes.

    Returns:
        int64 (K,) number of neighbours of each of the K nodes; int64 ids of all of them, in the order of ``ids``.
    """
    asked, chosen = ask(book, ids, ListsRequest)
    answers = zip(chosen, answers_to(asked, "lists of neighbours"), strict=True)
    pieces = [(positions, answer.counts, answer.sources) for positions, answer in answers]
    indptr, found = put_together(pieces, len(ids), torch.int64)
    return indptr.diff(), found


def put_together(pieces: Sequence[tuple[Tensor, Tensor, Tensor]], n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Lists of neighbours in the order of their ``n`` nodes.

    Args:
        pieces: int64 places of some of the nodes, number of neighbours of each, all neighbours.

    Returns:
        int64 (n + 1,) where each list begins; the neighbours, of this type.
    """
    counts = torch.zeros(n, dtype=torch.int64)
    for places, count, _ in pieces:
        counts[places] = count.long()
    indptr = F.pad(torch.cumsum(counts, 0), (1, 0))
    found = torch.empty(int(indptr[-1]), dtype=dtype)
    for places, _, neighbours in pieces:
        found[ranges(indptr[places], counts[places])] = neighbours.to(dtype)
    return indptr, found
