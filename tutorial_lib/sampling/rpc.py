"""Requests to DGL's servers: three of our own, and a way to send requests without waiting for their answers.

Every server of a job must import this module before it serves. ``session.serve_if_server`` does.

DGL's own functions send requests, wait, and take any message for an answer. Never call them while a request that was
sent by ``request`` is outstanding. ``receive`` accepts answers in any order, so that neighbors can be sampled while
feature rows are on their way.
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
from dgl.distributed.graph_services import SamplingRequest
from torch import Tensor

from tutorial_lib.errors import NOTICE_SECONDS, attempts

RESEED, NEIGHBORS, SAMPLE = 770001, 770002, 770003  # DGL's own services use other numbers
LIMIT_SECONDS = 120.0
_arrived: dict[int, Any] = {}  # messages that arrived before ``receive`` asked for them, by sequence number


def request(book: Any, ids: Tensor, make: Callable[[Tensor], rpc.Request]) -> tuple[dict[int, int], list[Tensor]]:
    """Send a request about some nodes to the machines that own them, and return without waiting.

    Args:
        book: partition book of the graph.
        ids: int64 node IDs.
        make: returns the request for the nodes of one machine.

    Returns:
        The argument for ``receive``, and for each answer the int64 positions of its nodes in ``ids``.
    """
    part_of = book.nid2partid(ids)
    parts = part_of.unique().tolist()
    positions = [(part_of == part).nonzero().flatten() for part in parts]
    requests = [(part, make(ids[at])) for part, at in zip(parts, positions, strict=True)]
    return (rpc.send_requests_to_machine(requests) if requests else {}), positions


def receive(sent: dict[int, int], what: str) -> list[Any]:
    """Wait for answers and return them in the order of the requests.

    Args:
        sent: sequence numbers of the requests, and the position of each answer.
        what: name of the data, for the notice during a long wait.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    found: list[Any] = [None] * len(sent)
    for count, (number, position) in enumerate(sent.items(), start=1):
        who = f"{what}: answer {count} of {len(sent)} from the DGL servers of other machines"
        for left in attempts(who, LIMIT_SECONDS, pause=0):
            if number in _arrived:
                break
            message = rpc.recv_rpc_message(max(1, int(1000 * min(left, NOTICE_SECONDS))))  # 0 would wait forever
            if message is not None:
                _arrived[message.msg_seq] = message
        message = _arrived.pop(number)
        _, kind = rpc.SERVICE_ID_TO_PROPERTY[message.service_id]
        found[position] = rpc.deserialize_from_payload(kind, message.data, message.tensors)
    return found


class Message:
    """Base of our requests and answers. DGL sends the values of their fields."""

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    def __setstate__(self: Any, state: Any) -> None:
        self.__init__(*(state if isinstance(state, tuple) else (state,)))  # DGL unwraps a tuple of one value


@dataclass(eq=False)
class ReseedRequest(Message, rpc.Request, rpc.Response):
    """Seeds the generator of a server, which returns the request as its answer."""

    value: int

    def process_request(self, server_state: Any) -> ReseedRequest:
        """Seed the generators. This method runs in the server."""
        seed_generators(self.value, is_graphbolt(server_state.graph))
        return self


@dataclass(eq=False)
class NeighborsRequest(Message, rpc.Request):
    """Asks a machine for all in-neighbors of some nodes of its part.

    Attributes:
        ids: int64 global node IDs.
    """

    ids: Tensor

    def process_request(self, server_state: Any) -> NeighborsResponse:
        """Return the in-neighbors. This method runs in the server."""
        book = server_state.partition_book
        local = book.nid2localnid(self.ids, book.partid)
        indptr, indices, global_ids = in_edges_of_part(server_state.graph, len(book.partid2nids(book.partid)))
        begin, counts = indptr[local].long(), (indptr[local + 1] - indptr[local]).long()
        found = global_ids[indices[ranges(begin, counts)].long()]
        return NeighborsResponse(found.to(id_type(len(found) and int(found.max()))), counts.int())


@dataclass(eq=False)
class NeighborsResponse(Message, rpc.Response):
    """In-neighbors of the requested nodes.

    Attributes:
        sources: int32 or int64 global IDs of all neighbors, in the order of the requested nodes.
        counts: int32 number of neighbors of each node.
    """

    sources: Tensor
    counts: Tensor


@dataclass(eq=False)
class SampleRequest(Message, rpc.Request):
    """Asks a machine to sample in-neighbors of some nodes of its part.

    The request carries a seed. So the answer does not depend on earlier requests, and a resumed run samples the same.

    Attributes:
        ids: int64 global node IDs.
        fanout: neighbors per node, or -1 for all.
        seed: seed of the generator of the server.
    """

    ids: Tensor
    fanout: int
    seed: int

    def process_request(self, server_state: Any) -> SampleResponse:
        """Sample. This method runs in the server."""
        graphbolt = is_graphbolt(server_state.graph)
        seed_generators(self.seed, graphbolt)
        sampled = SamplingRequest(self.ids, self.fanout, use_graphbolt=graphbolt).process_request(server_state)
        return SampleResponse(sampled.global_src, sampled.global_dst)


@dataclass(eq=False)
class SampleResponse(Message, rpc.Response):
    """Sampled edges, as int64 global IDs of sources and destinations."""

    sources: Tensor
    destinations: Tensor


rpc.register_service(SAMPLE, SampleRequest, SampleResponse)
rpc.register_service(RESEED, ReseedRequest, ReseedRequest)
rpc.register_service(NEIGHBORS, NeighborsRequest, NeighborsResponse)


def seed_servers(values: Mapping[int, int]) -> None:
    """Seed DGL servers, given by their number, and wait until all of them are seeded.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    sent = {}
    for position, (server, value) in enumerate(values.items()):
        sent[rpc.get_msg_seq()] = position  # the next request gets this number
        rpc.send_request(server, ReseedRequest(value))
    receive(sent, "generators to be seeded")


def fetch_neighbors(book: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return all in-neighbors of nodes of other machines.

    Args:
        book: partition book of the graph.
        ids: int64 tensor of K global node IDs.

    Returns:
        int64 (K,) number of neighbors of each node, and int64 IDs of all neighbors in the order of ``ids``.
    """
    sent, positions = request(book, ids, NeighborsRequest)
    answers = zip(positions, receive(sent, "neighbors of remote nodes"), strict=True)
    indptr, found = merge_lists([(at, answer.counts, answer.sources) for at, answer in answers], len(ids), torch.int64)
    return indptr.diff(), found


def merge_lists(lists: Sequence[tuple[Tensor, Tensor, Tensor]], n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Merge lists of neighbors into one CSC structure.

    Args:
        lists: int64 positions of some nodes, the number of neighbors of each, and the IDs of all neighbors.
        n: number of nodes.
        dtype: type of the merged IDs.

    Returns:
        int64 (n + 1,) index pointer, and the neighbors of all nodes.
    """
    counts = torch.zeros(n, dtype=torch.int64)
    for places, count, _ in lists:
        counts[places] = count.long()
    indptr = F.pad(torch.cumsum(counts, 0), (1, 0))
    found = torch.empty(int(indptr[-1]), dtype=dtype)
    for places, _, neighbors in lists:
        found[ranges(indptr[places], counts[places])] = neighbors.to(dtype)
    return indptr, found


def seed_generators(seed: int, graphbolt: bool) -> None:
    """Seed the generators that sample in a server."""
    dgl.seed(seed)
    if graphbolt:
        dgl.graphbolt.seed(seed)


def is_graphbolt(part: Any) -> bool:
    """Return whether the part in memory is in GraphBolt's format."""
    return hasattr(part, "csc_indptr")


def in_edges_of_part(part: Any, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the in-edges of the first ``inner`` nodes of the part that a server or trainer holds.

    Returns:
        indptr int64 (inner + 1,), the local ID of each edge's source, and the int64 global IDs of all local nodes.
    """
    if is_graphbolt(part):
        indptr, indices, ids = part.csc_indptr, part.indices, part.node_attributes[NID]
    else:
        indptr, indices, _edges = part.adj_tensors("csc")
        ids = part.ndata[NID]
    return indptr[: inner + 1], indices[: int(indptr[inner])], ids


def ranges(begin: Tensor, count: Tensor) -> Tensor:
    """Return ``begin[k]`` to ``begin[k] + count[k] - 1`` for each k, concatenated, as int64."""
    shift = begin - (torch.cumsum(count, 0) - count)
    repeated = torch.from_numpy(np.repeat(shift.numpy(), count.numpy()))  # much faster than repeat_interleave
    return repeated.add_(torch.arange(len(repeated)))


def id_type(largest: int) -> torch.dtype:
    """Return int32 if it holds this node ID, else int64."""
    return torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64
