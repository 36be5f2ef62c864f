"""Random numbers that depend on (seed, epoch, step, rank) alone."""

from typing import Any

import dgl
import numpy as np
import pytest
import torch

from tutorial_lib.compat.settings import derive_seed
from tutorial_lib.trainer import loop
from tutorial_lib.trainer.loop import seed_all, seed_servers


def draw_numbers() -> list[Any]:
    graph = dgl.graph((torch.arange(1, 2000), torch.zeros(1999, dtype=torch.int64)))
    sampled = dgl.sampling.sample_neighbors(graph, [0], 3).edges()[0]
    return [torch.rand(3).tolist(), np.random.rand(3).tolist(), sampled.tolist()]


def test_every_generator_is_seeded():
    """D3. Equal seeds give equal samples of DGL, because this thread gets the first generator."""
    seed_all(3, 1, 2, 0)
    first = draw_numbers()
    draw_numbers()
    seed_all(3, 1, 2, 0)
    assert draw_numbers() == first
    for numbers in ((3, 1, 2, 1), (3, 1, 1, 0)):
        seed_all(*numbers)
        assert all(one != same for one, same in zip(draw_numbers(), first, strict=True))


@pytest.mark.parametrize(("rank", "servers"), [(0, 2), (1, 2), (0, 0)])
def test_rank_0_seeds_each_server_once(monkeypatch, rank, servers):
    """D5. Rank 0 sends each server its own seed, and all ranks wait in a barrier until the servers have answered."""
    done: list[Any] = []
    monkeypatch.setattr(loop, "get_rank", lambda: rank)
    monkeypatch.setattr(loop.rpc, "get_num_server", lambda: servers)
    monkeypatch.setattr(loop, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(loop.rpc, "send_request", lambda server, request: done.append((server, request.seed)))
    monkeypatch.setattr(loop, "receive_responses", lambda asked, _what: done.extend(["answer"] * len(asked)))
    monkeypatch.setattr(loop.rpc, "get_msg_seq", lambda: len(done))
    seed_servers(3, 1)
    asks = [(0, derive_seed(3, 1, 2**20)), (1, derive_seed(3, 1, 2**20 + 1))]
    assert done == [*([*asks, "answer", "answer"] if (rank, servers) == (0, 2) else []), "barrier"]
