"""Requests to DGL's servers without waiting for their answers. ``receive`` accepts answers in any order.

DGL's own functions send requests, wait, and take any message for an answer. Never call them while a request that was
sent by ``request`` is outstanding. Every server of a job must import this module before it serves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dgl
import numpy as np
import torch
from dgl.distributed import rpc
from dgl.distributed.graph_services import SamplingRequest
from torch import Tensor

from tutorial_lib.errors import NOTICE_SECONDS, attempts

SAMPLE = 770001  # DGL's own services use other numbers
LIMIT_SECONDS = 120.0
_arrived: dict[int, Any] = {}  # messages that arrived before ``receive`` asked for them, by sequence number


def request(book: Any, ids: Tensor, make: Callable[[Tensor], rpc.Request]) -> dict[int, Tensor]:
    """Send a request to each owner of some node IDs. Return their positions by the number of the request."""
    part_of = book.nid2partid(ids)
    positions = [(part, (part_of == part).nonzero().flatten()) for part in part_of.unique().tolist()]
    requests = [(part, make(ids[at])) for part, at in positions]
    sent = rpc.send_requests_to_machine(requests) if requests else {}
    return {number: positions[k][1] for number, k in sent.items()}


def receive(sent: Mapping[int, Any], what: str) -> list[tuple[Any, Any]]:
    """Wait for the answers to numbered requests, at most two minutes for each. Return them with the values of sent."""
    answers = []
    for count, (number, value) in enumerate(sent.items(), start=1):
        who = f"{what}: answer {count} of {len(sent)} from the DGL servers of other machines"
        for left in attempts(who, LIMIT_SECONDS, pause=0):
            if number in _arrived:
                break
            message = rpc.recv_rpc_message(max(1, int(1000 * min(left, NOTICE_SECONDS))))  # 0 would wait forever
            if message is not None:
                _arrived[message.msg_seq] = message
        message = _arrived.pop(number)
        _, kind = rpc.SERVICE_ID_TO_PROPERTY[message.service_id]
        answers.append((value, rpc.deserialize_from_payload(kind, message.data, message.tensors)))
    return answers


@dataclass(eq=False)
class SampleRequest(rpc.Request, rpc.Response):
    """Seeds a server, which then samples in-neighbors of some nodes of its part and answers with the same class."""

    value: int  # the seed
    ids: Tensor | None = None  # int64 global IDs. Without them, the server only seeds its generators
    fanout: int = -1  # neighbors per node, or -1 for all
    sources: Tensor | None = None  # answer: int32 or int64 global IDs of the neighbors, in the order of the nodes
    counts: Tensor | None = None  # answer: int32 number of neighbors of each node

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)

    def process_request(self, server_state: Any) -> "SampleRequest":
        part, book = server_state.graph, server_state.partition_book
        dgl.seed(self.value)
        if graphbolt := hasattr(part, "csc_indptr"):  # the format of the part
            dgl.graphbolt.seed(self.value)
        if self.ids is None:
            return self
        indptr, indices, global_ids = in_edges(part)
        local = book.nid2localnid(self.ids, book.partid)
        begin, counts = indptr[local].long(), (indptr[local + 1] - indptr[local]).long()
        if self.fanout < 0:  # DGL would return the neighbors of a node in another order
            found = global_ids[indices[ranges(begin, counts)].long()]
        else:
            sampling = SamplingRequest(self.ids, self.fanout, use_graphbolt=graphbolt)
            found, counts = sampling.process_request(server_state).global_src, counts.clamp(max=self.fanout)
        sources = found.to(id_type(int(found.max()) if len(found) else 0))
        return SampleRequest(self.value, sources=sources, counts=counts.int())


rpc.register_service(SAMPLE, SampleRequest, SampleRequest)


def in_edges(part: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the in-edges of a part in memory: indptr, local IDs of the sources, and the global ID of each local ID."""
    if hasattr(part, "csc_indptr"):  # GraphBolt's format
        return part.csc_indptr, part.indices, part.node_attributes[dgl.NID]
    return (*part.adj_tensors("csc")[:2], part.ndata[dgl.NID])


def ranges(begin: Tensor, count: Tensor) -> Tensor:
    """Return ``begin[k]`` to ``begin[k] + count[k] - 1`` for each k, concatenated, as int64."""
    shift = begin - (torch.cumsum(count, 0) - count)
    repeated = torch.from_numpy(np.repeat(shift.numpy(), count.numpy()))  # much faster than repeat_interleave
    return repeated.add_(torch.arange(len(repeated)))


def id_type(largest: int) -> torch.dtype:
    """Return int32 if it holds this node ID, else int64."""
    return torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64
