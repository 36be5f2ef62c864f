"""Tests of ``embedding_updates.py``."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor

from embedding_updates import SparseAdagrad, adagrad_step, collect_trace, exchange, sum_repeated, uniform
from support.processes import fork

read_rows = set()  # by adagrad_step


@pytest.mark.parametrize(("shape", "dtype"), [((400, 4), torch.float32), ([50, 100], torch.float64)])
def test_uniform_bounds(shape, dtype):
    """Stretch random numbers between 0 and 1 to the range from -b to b, where b is 1 / sqrt(width)."""
    rows = uniform(shape, dtype)
    assert (tuple(rows.shape), rows.dtype) == (tuple(shape), dtype)
    got = [round(float(value) * shape[1] ** 0.5, 1) for value in (rows.min(), rows.mean(), rows.max())]
    expected = [-1.0, 0.0, 1.0]
    assert got == expected


def test_uniform_of_each_server(monkeypatch):
    """Sample from a new generator with the server's ID as seed, and not from the generator of torch."""
    state, rows = torch.get_rng_state(), [uniform((3, 2), torch.float32)]
    for server in ("0", "1", "1"):
        monkeypatch.setenv("DGL_SERVER_ID", server)
        rows.append(uniform((3, 2), torch.float32))
    assert torch.equal(torch.get_rng_state(), state), "your function changes the state of torch's generator"
    got = [torch.equal(rows[first], rows[second]) for first, second in ((0, 1), (2, 3), (1, 2))]
    expected = [True, True, False]
    assert got == expected


def test_sum_repeated():
    """Find the different rows and the place of each entry among them, then add each gradient at its place."""
    rows, sums = sum_repeated(torch.tensor([5, 2, 5, 0, 5]), torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8], [-1, 0]]))
    got, expected = (rows.tolist(), sums.tolist()), ([0, 2, 5], [[7.0, 8.0], [3.0, 4.0], [5.0, 8.0]])
    assert got == expected


class Recorded(DistTensor):
    def __getitem__(self, ids):
        read_rows.update(torch.as_tensor(ids).view(-1).tolist())
        return super().__getitem__(ids)


def test_adagrad_equals_torch(tiny):
    """Sum the gradients of a repeated row first. Memory keeps the sums of squares, without the root."""
    weight, memory = (Recorded((6, 2), torch.float32, name=name) for name in ("weight", "memory"))
    table = torch.nn.Parameter(torch.zeros(6, 2))
    optimizer = torch.optim.Adagrad([table], lr=0.5)
    for ids in ([4, 1], [1, 4, 1, 1], [2, 4], []):
        ids, grads = torch.tensor(ids).long(), torch.arange(1.0, 1 + 2 * len(ids)).reshape(-1, 2)
        table.grad = torch.zeros(6, 2).index_add_(0, ids, grads)
        optimizer.step()
        adagrad_step(weight, memory, ids, grads, 0.5)
    assert read_rows <= {1, 2, 4}, f"the batches have rows 1, 2 and 4, and you read {sorted(read_rows)}"
    for tensor, values in ((memory, optimizer.state[table]["sum"]), (weight, table.detach())):
        got, expected = tensor[torch.arange(6)], values
        assert torch.allclose(got, expected, atol=1e-5)


def test_collect_trace(tiny):
    """Concatenate the IDs and gradients of all reads that have a gradient. The second call finds no reads."""
    emb = DistEmbedding(6, 1, name="emb")
    reads = [emb(torch.tensor(ids)) for ids in ([1, 2], [4], [2])]
    (reads[0].sum() + 3 * reads[2].sum()).backward()
    got = [(tensor.dtype, tensor.tolist()) for _ in range(2) for tensor in collect_trace(emb)]
    expected = [(torch.int64, [1, 2, 2]), (torch.float32, [[1], [1], [3]]), (torch.int64, []), (torch.float32, [])]
    assert got == expected


def exchanged(rank, _size):
    ids = torch.tensor([[0, 3, 3], [2, 1, 0], []][rank]).long()
    rows, grads = exchange(ids, torch.stack([ids.float(), torch.full((len(ids),), 1.0 + rank)], 1))
    return sorted(zip(rows.tolist(), grads.tolist()))


def test_exchange():
    """Select the rows for which ID % world_size is the rank, from all ranks. A rank without reads takes part."""
    got = fork(exchanged, 3, backend="gloo", threads=1, timeout=30)
    expected = [[(0, [0, 1]), (0, [0, 2]), (3, [3, 1]), (3, [3, 1])], [(1, [1, 2])], [(2, [2, 2])]]
    assert got == expected


class Slow(torch.Tensor):
    def __setitem__(self, ids, rows):
        time.sleep(0.5 * dist.get_rank())
        super().__setitem__(ids, rows)


def test_step_of_two_ranks():
    """Collect, exchange, update, then wait. Rank 1 writes row 1 late, and both ranks must see the new row."""
    weight, memory = (torch.zeros(4, 1).share_memory_().as_subclass(Slow) for _ in range(2))

    def step(rank, _size):
        rows = SimpleNamespace(grad=torch.tensor([[2.0], [-1.0 - rank]]))
        emb = SimpleNamespace(weight=weight, embedding_dim=1, _trace=[(torch.tensor([0, 1 + rank]), rows)])
        emb.reset_trace = emb._trace.clear
        optimizer = SparseAdagrad.__new__(SparseAdagrad)
        optimizer.emb, optimizer.lr, optimizer.memory = emb, 0.5, memory
        optimizer.step()
        return [weight.flatten().tolist(), memory.flatten().tolist()]

    got = fork(step, 2, backend="gloo", threads=1, timeout=30)
    expected = [[[-0.5, 0.5, 0.5, 0.0], [16.0, 1.0, 4.0, 0.0]]] * 2
    assert got == expected
