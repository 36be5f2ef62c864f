"""Requests of our own to the servers, and waiting for answers."""

from __future__ import annotations

import time
from itertools import chain
from types import SimpleNamespace

import dgl
import pytest
import torch
from row_support import PartBook, part_with_halo

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.sampling import rpc
from tutorial_lib.sampling.rpc import NeighborsRequest, NeighborsResponse, fetch_neighbors, id_type, ranges


def test_ranges_are_laid_end_to_end():
    assert ranges(torch.tensor([5, 0, 9]), torch.tensor([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)).tolist() == []


def test_ids_are_as_narrow_as_the_largest_of_them():
    assert [id_type(largest) for largest in (0, 2**31 - 1, 2**31)] == [torch.int32, torch.int32, torch.int64]


@pytest.mark.parametrize("far", [0, 2**31])
def test_a_server_answers_with_the_lists_of_its_part(far):
    """Ids that fit into 32 bits are sent in them; others whole."""
    part = part_with_halo(4, 3)
    part.ndata[dgl.NID][3:] += far
    answer = NeighborsRequest(torch.tensor([2, 1, 0])).process_request(
        SimpleNamespace(partition_book=PartBook(), graph=part)
    )
    assert answer.counts.tolist() == [3, 0, 2]
    given = [sorted(each.tolist()) for each in answer.sources.split(answer.counts.tolist())]
    assert given == [[0, 1, 4 + far], [], [3 + far, 4 + far]]
    assert answer.sources.dtype == (torch.int64 if far else torch.int32)


def test_lists_of_two_machines_come_in_the_order_of_the_nodes(monkeypatch):
    lists = {3: [1, 5], 0: [3, 4], 4: [2], 1: [], 2: [4, 0, 1]}
    sent: list[list[int]] = []

    def send(requests):
        sent.extend(request.ids.tolist() for _part, request in requests)
        return {number: number for number in range(len(requests))}

    def answers(asked, _what):
        found = [[lists[node] for node in sent[number]] for number in asked]
        return [
            NeighborsResponse(torch.tensor(list(chain(*each))), torch.tensor([len(one) for one in each]))
            for each in found
        ]

    monkeypatch.setattr(rpc.rpc, "send_requests_to_machine", send)
    monkeypatch.setattr(rpc, "receive", answers)
    counts, found = fetch_neighbors(PartBook(), torch.tensor(list(lists)))
    assert sent == [[0, 1, 2], [3, 4]]
    assert [each.tolist() for each in found.split(counts.tolist())] == list(lists.values())


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(rpc, "LIMIT_SECONDS", 2.5)
    monkeypatch.setattr(rpc.rpc, "recv_rpc_message", lambda ms: time.sleep(ms / 1000))  # as DGL: None, in time
    what = "rows: answer 1 of 2 from the DGL servers of other machines"
    with pytest.raises(WaitedTooLong, match=f"waited 2.5 s for {what}"):
        rpc.receive({7: 0, 8: 1}, "rows")
    assert capsys.readouterr().err == f"waiting for {what} (for at most 2.5 s)\n"
