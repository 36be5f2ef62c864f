"""Requests to DGL's servers besides their own: lists of neighbours, and to seed their generators.

Every server of a job must import this module before it serves (``session.serve_if_server`` does).

Answers may be taken in another order than they were asked for: while rows are on their way, neighbours are drawn. DGL's
own calls would take any answer for theirs: while something that was asked for here is on its way, use none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dgl
import numpy as np
import torch
import torch.nn.functional as F
from dgl import NID
from dgl.distributed import rpc
from torch import Tensor

from tutorial_lib.errors import NOTICE_SECONDS, attempts

RESEED, LISTS = 770001, 770002  # DGL's own services use other numbers
LIMIT_SECONDS = 120.0
_arrived: dict[int, Any] = {}  # messages that nobody has taken yet, by the number of their request


def ask(book: Any, ids: Tensor, request: Callable[[Tensor], rpc.Request]) -> tuple[dict[int, int], list[Tensor]]:
    """Ask the machine of each node about it, all machines at once.

    Returns:
        What ``answers_to`` takes; for each of its answers, int64 positions in ``ids``.
    """
    part_of = book.nid2partid(ids)
    parts = part_of.unique().tolist()
    chosen = [(part_of == part).nonzero().flatten() for part in parts]
    requests = [(part, request(ids[positions])) for part, positions in zip(parts, chosen, strict=True)]
    return (rpc.send_requests_to_machine(requests) if requests else {}), chosen


def answers_to(asked: dict[int, int], what: str) -> list[Any]:
    """The answers, in the order of the requests. As DGL's ``recv_responses``, but the wait says what it is for.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    found: list[Any] = [None] * len(asked)
    for count, (number, position) in enumerate(asked.items(), start=1):
        who = f"{what}: answer {count} of {len(asked)} from the DGL servers of other machines"
        for left in attempts(who, LIMIT_SECONDS, pause=0):
            if number in _arrived:
                break
            message = rpc.recv_rpc_message(max(1, int(1000 * min(left, NOTICE_SECONDS))))  # 0 would be for ever
            if message is not None:
                _arrived[message.msg_seq] = message
        message = _arrived.pop(number)
        _, kind = rpc.SERVICE_ID_TO_PROPERTY[message.service_id]
        found[position] = rpc.deserialize_from_payload(kind, message.data, message.tensors)
    return found


def is_graphbolt(part: Any) -> bool:
    """Whether a part, as servers and trainers hold it, is in GraphBolt's format."""
    return hasattr(part, "csc_indptr")


def in_edges_of_part(part: Any, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    """In-edges of the first ``inner`` nodes of a part, as servers and trainers hold it.

    Returns:
        indptr int64 (inner + 1,); local ids of the sources, one for each edge; int64 ids of all local nodes.
    """
    if is_graphbolt(part):
        indptr, indices, ids = part.csc_indptr, part.indices, part.node_attributes[NID]
    else:
        indptr, indices, _edges = part.adj_tensors("csc")
        ids = part.ndata[NID]
    return indptr[: inner + 1], indices[: int(indptr[inner])], ids


def ranges(begin: Tensor, count: Tensor) -> Tensor:
    """int64: ``begin[k]`` up to ``begin[k] + count[k] - 1`` for each k, one after the other."""
    before = torch.cumsum(count, 0) - count
    return repeated(begin - before, count).add_(torch.arange(int(count.sum())))


def repeated(values: Tensor, count: Tensor) -> Tensor:
    """``torch.repeat_interleave``, for short runs in a fraction of its time."""
    return torch.from_numpy(np.repeat(values.numpy(), count.numpy()))


def id_type(largest: int) -> torch.dtype:
    """The smaller type of node ids, int32 or int64, that holds this number."""
    return torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64


class Message:
    """What requests and answers of ours have in common: dataclasses, which travel as the values of their fields."""

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    def __setstate__(self: Any, state: Any) -> None:
        self.__init__(*(state if isinstance(state, tuple) else (state,)))  # DGL gives a single value as it is


@dataclass(eq=False)
class ListsRequest(Message, rpc.Request):
    """Asks a machine for all in-neighbors of some nodes of its part.

    Attributes:
        ids: int64 global node IDs.
    """

    ids: Tensor

    def process_request(self, server_state: Any) -> ListsResponse:
        """Return the in-neighbors. This method runs in the server."""
        book = server_state.partition_book
        local = book.nid2localnid(self.ids, book.partid)
        indptr, indices, global_ids = in_edges_of_part(server_state.graph, len(book.partid2nids(book.partid)))
        begin, counts = indptr[local].long(), (indptr[local + 1] - indptr[local]).long()
        found = global_ids[indices[ranges(begin, counts)].long()]
        return ListsResponse(found.to(id_type(len(found) and int(found.max()))), counts.int())


@dataclass(eq=False)
class ListsResponse(Message, rpc.Response):
    """In-neighbors of the requested nodes.

    Attributes:
        sources: int32 or int64 global IDs of all neighbors, in the order of the requested nodes.
        counts: int32 number of neighbors of each node.
    """

    sources: Tensor
    counts: Tensor


rpc.register_service(LISTS, ListsRequest, ListsResponse)


def lists_of(book: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the in-neighbors of remote nodes.

    Args:
        book: partition book of the graph.
        ids: int64 tensor of K global node IDs.

    Returns:
        int64 (K,) number of neighbors of each node, and int64 IDs of all neighbors in the order of ``ids``.
    """
    asked, chosen = ask(book, ids, ListsRequest)
    answers = zip(chosen, answers_to(asked, "lists of neighbours"), strict=True)
    indptr, found = put_together([(at, answer.counts, answer.sources) for at, answer in answers], len(ids), torch.int64)
    return indptr.diff(), found


def put_together(lists: Sequence[tuple[Tensor, Tensor, Tensor]], n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Merge lists of neighbors into one CSC structure.

    Args:
        lists: int64 positions of some nodes, the number of neighbors of each, and the IDs of all neighbors.
        n: number of nodes.
        dtype: type of the merged IDs.

    Returns:
        int64 (n + 1,) first position of each list, and the neighbors of all nodes.
    """
    counts = torch.zeros(n, dtype=torch.int64)
    for places, count, _ in lists:
        counts[places] = count.long()
    indptr = F.pad(torch.cumsum(counts, 0), (1, 0))
    found = torch.empty(int(indptr[-1]), dtype=dtype)
    for places, _, neighbors in lists:
        found[ranges(indptr[places], counts[places])] = neighbors.to(dtype)
    return indptr, found


def seed_servers(values: Mapping[int, int]) -> None:
    """Have DGL servers, by their number, seed their generators with a value each, and wait until all have.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    asked = {}
    for position, (server, value) in enumerate(values.items()):
        asked[rpc.get_msg_seq()] = position  # the number that the next request will have
        rpc.send_request(server, Reseed(value))
    answers_to(asked, "generators to be seeded")


@dataclass(eq=False)
class Reseed(Message, rpc.Request, rpc.Response):
    """Asks a server to seed its generator, and comes back when that is done."""

    value: int

    def process_request(self, server_state: Any) -> Reseed:
        """Runs in the server."""
        dgl.seed(self.value)
        if is_graphbolt(server_state.graph):
            dgl.graphbolt.seed(self.value)
        return self


rpc.register_service(RESEED, Reseed, Reseed)
