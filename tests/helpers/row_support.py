"""Fakes of DistTensor, partition book and servers for tests of the pipeline."""

from collections import deque
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import dgl
import pytest
import torch
from dgl.distributed.kvstore import KVSTORE_PULL, PullRequest, PullResponse

from tutorial_lib.sampling import neighbors


class FakeDistTensor:
    """A ``DistTensor`` of which this machine holds the rows ``begin`` to ``end - 1``."""

    kvstore_key = "rows"

    def __init__(self, rows: torch.Tensor, begin: int, end: int) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.local_partition = rows[begin:end].clone()
        self.asked: list[list[int]] = []


class FakePartitionBook:
    """Partition book in which part 0 has the nodes ``begin`` to ``end - 1``, part 1 those before, part 2 the others."""

    partid = 0

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def partid2nids(self, _part: int) -> torch.Tensor:
        return torch.arange(self.begin, self.end)

    def nid2partid(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.where(ids < self.begin, 1, torch.where(ids < self.end, 0, 2))


class FakeConnection:
    """A connection to DGL servers with some rows. ``waiting`` are messages that were not received yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: Any = None) -> None:
        self.rows, self.waiting, self._numbers = rows, deque[Any](), count(100)
        neighbors.rpc.register_service(KVSTORE_PULL, PullRequest, PullResponse)  # as a client does when it joins
        monkeypatch.setattr(neighbors.rpc, "send_requests_to_machine", self.send)
        monkeypatch.setattr(neighbors.rpc, "recv_rpc_message", lambda _ms: self.waiting.popleft())

    def send(self, requests: list[tuple[int, Any]]) -> dict[int, int]:
        sent = {}
        for position, answer in enumerate(self.answers(requests)):
            data, tensors = neighbors.rpc.serialize_to_payload(answer)
            sent[number := next(self._numbers)] = position
            service = requests[position][1].service_id
            self.waiting.append(SimpleNamespace(msg_seq=number, service_id=service, data=data, tensors=tensors))
        return sent

    def answers(self, requests: list[tuple[int, Any]]) -> list[Any]:
        ids = [request.id_tensor for _part, request in requests]
        self.rows.asked.append(sorted(torch.cat(ids).tolist()))
        assert {request.name for _part, request in requests} == {self.rows.kvstore_key}
        return [PullResponse(0, self.rows.rows[some]) for some in ids]


class FakeCluster(FakeConnection):
    """Machines with the parts of a graph, given by the in-neighbors of each node. Part k begins at ``bounds[k]``.

    ``graph`` is the ``DistGraph`` of machine 0.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, neighbors: dict[int, list[int]], *bounds: int, graphbolt: bool = False
    ) -> None:
        super().__init__(monkeypatch)
        self.requests: list[neighbors.SampleRequest] = []
        self.states = []
        for part, pair in enumerate(pairwise(bounds)):
            book: Any = SimpleNamespace(partid=part)
            book.partid2nids = lambda part: torch.arange(bounds[part], bounds[part + 1])
            book.nid2partid = lambda ids: torch.bucketize(ids, torch.tensor(bounds[1:]), right=True)
            book.nid2localnid = lambda ids, part: ids - bounds[part]
            graph = part_graph(neighbors, range(*pair), graphbolt=graphbolt)
            self.states.append(SimpleNamespace(graph=graph, partition_book=book, kv_store=None))
        here = self.states[0]
        self.graph = SimpleNamespace(
            get_partition_book=lambda: here.partition_book, num_nodes=lambda: bounds[-1], local_partition=here.graph
        )

    @property
    def asked(self) -> list[list[int]]:
        """Node IDs of each request."""
        return [request.ids.tolist() for request in self.requests if request.ids is not None]

    def answers(self, requests: list[tuple[int, Any]]) -> list[Any]:
        self.requests += [request for _part, request in requests]
        return [request.process_request(self.states[part]) for part, request in requests]


def part_graph(neighbors: dict[int, list[int]], own: range, *, graphbolt: bool = False) -> Any:
    """Return a part with the edges into its nodes. The nodes of other parts follow in descending order."""
    outer = sorted({source for node in own for source in neighbors[node]} - set(own), reverse=True)
    places = {node: place for place, node in enumerate([*own, *outer])}
    edges = [(places[source], places[node]) for node in own for source in neighbors[node]]
    part = dgl.graph((torch.tensor(edges, dtype=torch.int64).view(-1, 2).T.unbind()), num_nodes=len(places))
    part.ndata[dgl.NID] = torch.tensor(list(places))
    part.edata[dgl.EID] = torch.arange(len(edges))
    if not graphbolt:
        return part
    indptr, indices, _edges = part.adj_tensors("csc")
    return dgl.graphbolt.fused_csc_sampling_graph(indptr, indices, node_attributes={dgl.NID: part.ndata[dgl.NID]})
