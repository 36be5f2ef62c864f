"""Rows and a partition book as the pipeline sees them, without servers."""

from __future__ import annotations

from collections import deque
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dgl
import pytest
import torch
from dgl.distributed.kvstore import KVSTORE_PULL, PullRequest, PullResponse

from tutorial_lib.sampling import rpc


class Rows:
    """A ``DistTensor`` of which this machine holds the rows ``begin`` to ``end - 1``."""

    def __init__(self, rows: torch.Tensor, begin: int, end: int, *, shared: Path | None = None) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        self.local_partition = rows[begin:end].clone()
        if shared is not None:
            shared.write_bytes(self.local_partition.numpy().tobytes())
            mapped = torch.from_file(str(shared), shared=True, size=self.local_partition.numel(), dtype=rows.dtype)
            self.local_partition = mapped.view_as(self.local_partition)
        self.asked: list[list[int]] = []

        self.kvstore_key = "rows"


class Book:
    """Part 0 has the nodes ``begin`` to ``end - 1``; part 1 those before, part 2 those behind."""

    partid = 0

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def partid2nids(self, _part: int) -> torch.Tensor:
        return torch.arange(self.begin, self.end)

    def nid2partid(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.where(ids < self.begin, 1, torch.where(ids < self.end, 0, 2))


class Wire:
    """The connection to the DGL servers that have some rows; their answers come in the order of the requests.

    Attributes:
        waiting: messages that nobody has received.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: Rows) -> None:
        self.rows, self.waiting, self._numbers = rows, deque[Any](), count(100)
        rpc.rpc.register_service(KVSTORE_PULL, PullRequest, PullResponse)  # as a client does when it joins
        monkeypatch.setattr(rpc.rpc, "send_requests_to_machine", self.send)
        monkeypatch.setattr(rpc.rpc, "recv_rpc_message", lambda _ms: self.waiting.popleft())

    def send(self, requests: list[tuple[int, Any]]) -> dict[int, int]:
        sent = {}
        ids = [request.id_tensor for _part, request in requests]
        self.rows.asked.append(sorted(torch.cat(ids).tolist()))
        for position, (_part, request) in enumerate(requests):
            assert request.name == self.rows.kvstore_key
            answer = PullResponse(0, self.rows.rows[request.id_tensor])
            data, tensors = rpc.rpc.serialize_to_payload(answer)
            sent[number := next(self._numbers)] = position
            self.waiting.append(
                SimpleNamespace(msg_seq=number, service_id=request.service_id, data=data, tensors=tensors)
            )
        return sent


class PartBook:
    """Part 0 has nodes 0 to 2, part 1 the others."""

    partid = 0

    def partid2nids(self, _part: int) -> torch.Tensor:
        return torch.arange(3)

    def nid2partid(self, ids: torch.Tensor) -> torch.Tensor:
        return (ids > 2).long()

    def nid2localnid(self, ids: torch.Tensor, _part: int) -> torch.Tensor:
        return ids


# In-neighbours: of nodes 0 to 2, which are here, and of 3 and 4, which another machine has.
NEIGHBOURS = {0: [3, 4], 1: [], 2: [4, 0, 1], 3: [1, 5], 4: [2]}


def part_with_halo(*outer: int) -> dgl.DGLGraph:
    """Nodes 0 to 2 with their edges; behind them the outer nodes, by the ids that they have in the whole graph."""
    places = {node: place for place, node in enumerate([0, 1, 2, *outer])}
    edges = [(places[source], node) for node in range(3) for source in NEIGHBOURS[node]]
    part = dgl.graph(tuple(torch.tensor(ends) for ends in zip(*edges, strict=True)), num_nodes=len(places))
    part.ndata[dgl.NID] = torch.tensor(list(places))
    return part
