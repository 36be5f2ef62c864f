"""Requests to the servers and their answers."""

import time

import dgl
import pytest
import torch
from row_support import FakeCluster

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.sampling import neighbors
from tutorial_lib.sampling.neighbors import SampleRequest, receive_responses

NEIGHBORS = {0: [3, 4], 1: [], 2: [4, 0, 1], 3: [1, 5], 4: [2], 5: []}


@pytest.mark.parametrize("far", [0, 2**31])
def test_ids_are_sent_in_32_bits_if_they_fit(monkeypatch, far):
    state = FakeCluster(monkeypatch, NEIGHBORS, 0, 3, 6).states[0]
    state.graph.ndata[dgl.NID][3:] += far
    answer = SampleRequest(0, torch.tensor([2, 1, 0])).process_request(state)
    assert sorted(answer.sources.tolist()) == sorted([0, 1, 4 + far, 3 + far, 4 + far])
    assert (answer.counts.tolist(), answer.sources.dtype) == ([3, 0, 2], torch.int64 if far else torch.int32)


def test_server_without_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(neighbors, "RESPONSE_SECONDS", 2.5)
    monkeypatch.setattr(neighbors.rpc, "recv_rpc_message", lambda ms: time.sleep(ms / 1000))  # as DGL: None, in time
    what = "rows: response 1 of 2 from the DGL servers of other machines"
    with pytest.raises(WaitedTooLong, match=f"waited 2.5 s for {what}"):
        receive_responses({7: 0, 8: 1}, "rows")
    assert capsys.readouterr().err == f"waiting for {what} (for at most 2.5 s)\n"
