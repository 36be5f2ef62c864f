"""Two requests that DGL's servers answer besides their own: lists of neighbours, and rows in half precision.

Every server of a job must have imported this module before it serves (``session.serve_if_server`` does).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dgl import NID
from dgl.distributed import rpc
from torch import Tensor

from tutorial_lib.errors import NOTICE_SECONDS, attempts

LISTS, HALF_ROWS = 770002, 770003  # DGL's own services use other numbers
LIMIT_SECONDS = 120.0


def answers_to(asked: dict[int, int], what: str) -> list[Any]:
    """The answers to what ``rpc.send_requests_to_machine`` has sent, in the order of the requests.

    As DGL's ``recv_responses``, but the wait says what it is for.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    found: list[Any] = [None] * len(asked)
    for number in range(len(asked)):
        who = f"{what}: answer {number + 1} of {len(asked)} from the DGL servers of other machines"
        for left in attempts(who, LIMIT_SECONDS, pause=0):
            message = rpc.recv_rpc_message(max(1, int(1000 * min(left, NOTICE_SECONDS))))  # 0 would be for ever
            if message is not None:
                _, kind = rpc.SERVICE_ID_TO_PROPERTY[message.service_id]
                answer = rpc.deserialize_from_payload(kind, message.data, message.tensors)
                found[asked[message.msg_seq]] = answer
                break
    return found


def in_edges_of_part(part: Any, inner: int) -> tuple[Tensor, Tensor, Tensor]:
    """In-edges of the first ``inner`` nodes of a part, as servers and trainers hold it.

    Returns:
        indptr int64 (inner + 1,); local ids of the sources, one for each edge; int64 ids of all local nodes.
    """
    if hasattr(part, "csc_indptr"):  # GraphBolt's format
        indptr, indices, ids = part.csc_indptr, part.indices, part.node_attributes[NID]
    else:
        indptr, indices, _edges = part.adj_tensors("csc")
        ids = part.ndata[NID]
    return indptr[: inner + 1], indices[: int(indptr[inner])], ids


def lists_of(book: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """In-neighbours of remote nodes, each asked for at its own machine, all machines at once.

    Args:
        ids: int64 (K,), none of this machine's part.

    Returns:
        int64 (K,) number of neighbours of each; int64 ids of all of them, in the order of ``ids``.

    Raises:
        WaitedTooLong: a server does not answer within two minutes.
    """
    answers = _ask_all(book, ids, ListsRequest, "lists of neighbours")
    counts = torch.zeros(len(ids), dtype=torch.int64)
    for positions, answer in answers:
        counts[positions] = answer.counts.long()
    begin = torch.cumsum(counts, 0) - counts
    found = torch.empty(int(counts.sum()), dtype=torch.int64)
    for positions, answer in answers:
        found[ranges(begin[positions], counts[positions])] = answer.sources.long()
    return counts, found


def ranges(begin: Tensor, count: Tensor) -> Tensor:
    """int64: ``begin[k]`` up to ``begin[k] + count[k] - 1`` for each k, one after the other."""
    before = torch.cumsum(count, 0) - count
    return torch.arange(int(count.sum())) + torch.repeat_interleave(begin - before, count)


def half_rows(tensor: Any, book: Any, ids: Tensor) -> Tensor:
    """Rows of a ``DistTensor`` of nodes that other machines hold, sent in float16, in the tensor's own type."""
    rows = torch.empty((len(ids), *tensor.shape[1:]), dtype=tensor.dtype)
    for positions, answer in _ask_all(book, ids, lambda own: HalfRowsRequest(tensor._name, own), "rows"):
        rows[positions] = answer.rows.to(tensor.dtype)
    return rows


def _ask_all(book: Any, ids: Tensor, request: Callable[[Tensor], rpc.Request], what: str) -> list[tuple[Tensor, Any]]:
    """Ask the machine of each node about it: positions in ``ids`` and the answer, for each machine."""
    part_of = book.nid2partid(ids)
    parts = part_of.unique().tolist()
    chosen = [(part_of == part).nonzero().flatten() for part in parts]
    requests = [(part, request(ids[positions])) for part, positions in zip(parts, chosen, strict=True)]
    answers = answers_to(rpc.send_requests_to_machine(requests), what) if requests else []
    return list(zip(chosen, answers, strict=True))


class _Fields:
    """State of a message: its attributes in the order of ``names``."""

    names: tuple[str, ...] = ()

    def __getstate__(self) -> tuple:
        return tuple(getattr(self, name) for name in self.names)

    def __setstate__(self, state: Any) -> None:
        state = state if len(self.names) > 1 else (state,)  # DGL unpacks a state of one element
        for name, value in zip(self.names, state, strict=True):
            setattr(self, name, value)


class ListsRequest(_Fields, rpc.Request):
    """Asks a machine for the in-neighbours of nodes of its part."""

    names = ("ids",)

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def process_request(self, server_state: Any) -> ListsResponse:
        """Runs in the server."""
        book = server_state.partition_book
        local = book.nid2localnid(self.ids, book.partid)
        inner = len(book.partid2nids(book.partid))
        indptr, indices, ids = in_edges_of_part(server_state.graph, inner)
        begin, counts = indptr[local].long(), (indptr[local + 1] - indptr[local]).long()
        sources = ids[indices[ranges(begin, counts)].long()]
        small = int(ids.max()) < 2**31 if len(ids) else True
        return ListsResponse(counts.int(), sources.int() if small else sources)


class ListsResponse(_Fields, rpc.Response):
    """Number of neighbours of each node, and all of them."""

    names = ("counts", "sources")

    def __init__(self, counts: Tensor, sources: Tensor) -> None:
        self.counts, self.sources = counts, sources


class HalfRowsRequest(_Fields, rpc.Request):
    """Asks a machine for rows of its part in float16."""

    names = ("tensor", "ids")

    def __init__(self, tensor: str, ids: Tensor) -> None:
        self.tensor, self.ids = tensor, ids

    def process_request(self, server_state: Any) -> HalfRowsResponse:
        """Runs in the server."""
        book = server_state.partition_book
        local = book.nid2localnid(self.ids, book.partid)
        return HalfRowsResponse(server_state.kv_store.data_store[self.tensor][local].half())


class HalfRowsResponse(_Fields, rpc.Response):
    """The rows."""

    names = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


rpc.register_service(LISTS, ListsRequest, ListsResponse)
rpc.register_service(HALF_ROWS, HalfRowsRequest, HalfRowsResponse)
