"""Tests of ``row_table.py``. They start one to three real ranks."""

import functools
import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.distributed as dist
from dgl.distributed import DistEmbedding
from dgl.distributed.optim import SparseAdam

import row_table
from support.processes import fork

on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=30)
ALL = torch.arange(6)


def test_first_rows_depend_on_the_id():
    """The row of a node depends neither on the other IDs nor on their order. IDs 3 and 4096 + 3 have different rows."""
    rows = row_table.first_rows(torch.arange(9000), 8, 5)
    for ids in ([4099, 8999, 3, 0, 4099], [8192, 4096], [0]):
        got, expected = row_table.first_rows(torch.tensor(ids), 8, 5), rows[ids]
        assert torch.equal(got, expected)
    got, expected = len(rows.unique(dim=0)), 9000
    assert got == expected


def test_first_rows_are_normal():
    """Multiply ``torch.randn`` by 0.1. The generator of torch stays as it is, and another seed has other rows."""
    state, rows = torch.get_rng_state(), row_table.first_rows(torch.arange(5000), 20, 0)
    assert torch.equal(torch.get_rng_state(), state), "your function changes the state of torch's generator"
    got = [rows.dtype, tuple(rows.shape), *(round(float(value), 2) for value in (rows.mean(), rows.std()))]
    expected = [torch.float32, (5000, 20), 0.0, 0.1]
    assert got == expected
    got, expected = torch.equal(row_table.first_rows(torch.arange(5000), 20, 1), rows), False
    assert got == expected


class Slow(torch.Tensor):
    def __setitem__(self, ids, rows):
        time.sleep(0.5 * dist.get_rank())
        super().__setitem__(ids, rows)


def test_make_table_waits(monkeypatch):
    """Each rank writes the rows of its nodes by their original IDs. Rank 1 is late, and rank 0 must wait for it."""
    original, memory = torch.tensor([30, 10, 50, 20, 40, 0]), torch.zeros(6, 3).share_memory_().as_subclass(Slow)
    g = SimpleNamespace(ndata={"original": original}, num_nodes=lambda: 6, get_node_partition_policy=lambda t: t)
    calls = []

    def create(count, width, name=None, init_func=None, part_policy=None):
        calls.append((count, width, name, part_policy))
        return SimpleNamespace(weight=memory)

    def run(rank, _size):
        table = row_table.make_table(g, torch.tensor([[0, 2, 4], [1, 3, 5]][rank]), 3, 7)
        return calls, table.weight.tolist()

    monkeypatch.setattr(row_table, "DistEmbedding", create)
    monkeypatch.setattr(row_table, "first_rows", lambda i, width, seed: (i[:, None] + seed).float().repeat(1, width))
    got = on_ranks(run, 2)
    expected = [([(6, 3, "rows", "_N")], [[i + 7.0] * 3 for i in original.tolist()])] * 2
    assert got == expected


def new_optimizer(tiny):
    table = DistEmbedding(6, 2, name="rows", part_policy=tiny.get_node_partition_policy("_N"))
    return table, row_table.RowAdam([table], lr=0.1)


def test_update_equals_torch(tiny):
    """Add the gradients of a row, divide by the number of all ranks, and pass each row once to SparseAdam.update."""

    def run(_rank, _size):
        table, optimizer = new_optimizer(tiny)
        optimizer._world_size = 2
        optimizer.update(torch.tensor([3, 1, 3]), torch.tensor([[2.0, 1], [4, -3], [6, 0]]), table)
        _, memory, _ = optimizer._state["rows"]
        return [[round(value, 4) for value in tensor[ALL].flatten().tolist()] for tensor in (table.weight, memory)]

    row = torch.nn.Parameter(torch.zeros(4))
    row.grad = torch.tensor([2.0, -1.5, 4.0, 0.5])  # of nodes 1 and 3
    (adam := torch.optim.Adam([row], lr=0.1)).step()
    got, expected = on_ranks(run, 1)[0], []
    for values in (row.detach(), adam.state[row]["exp_avg"]):
        rows = torch.zeros(6, 2)
        rows[[1, 3]] = values.reshape(2, 2)
        expected.append([round(value, 4) for value in rows.flatten().tolist()])
    assert got == expected


READS = [[[0, 3], [1]], [[3, 5], []], [[], []]]  # of three ranks in two steps


@pytest.mark.parametrize("size", [1, 2, 3])
def test_steps_of_ranks_equal_one_process(tiny, size):
    """All ranks use the reads of all ranks, so their tables stay equal. A rank without reads takes part."""

    def run(rank, size):
        table, optimizer = new_optimizer(tiny)
        for step in range(2):
            for reads in READS[rank::size]:  # with fewer ranks, a rank reads for several of them
                if reads[step]:
                    ids = torch.tensor(reads[step])
                    (size * table(ids) * (1.0 + ids[:, None])).sum().backward()
            optimizer.step()
        counts, _, squares = optimizer._state["rows"]
        rows = [round(value, 4) for value in table.weight[ALL][:, 0].tolist()]
        return rows, counts[ALL].tolist(), [round(1000 * value) for value in squares[ALL][:, 0].tolist()]

    got = on_ranks(run, size)
    expected = [([-0.1, -0.1, 0.0, -0.1, 0.0, -0.1], [1, 1, 0, 1, 0, 1], [1, 4, 0, 64, 0, 36])] * size
    assert got == expected


def test_step_on_machines(monkeypatch):
    """With servers, SparseAdam.step sends the gradients. Then each rank updates different rows."""
    got, optimizer = [], row_table.RowAdam.__new__(row_table.RowAdam)
    monkeypatch.setattr(SparseAdam, "step", lambda self: got.append(self))
    monkeypatch.setattr(row_table, "is_standalone", lambda: False)
    optimizer.step()
    expected = [optimizer]
    assert got == expected


class Slower(list):
    """A list of rows that rank 1 reads and writes slowly."""

    def __getitem__(self, nodes):
        time.sleep(0.3 * dist.get_rank())
        return torch.tensor(super().__getitem__(slice(None)))[nodes]

    def __setitem__(self, nodes, rows):
        time.sleep(0.3 * dist.get_rank())
        for node, row in zip(nodes.tolist(), rows.tolist()):
            super().__setitem__(node, row)


def size_of(file):
    return os.fstat(file if isinstance(file, int) else file.fileno()).st_size


def test_write_and_read_rows(tmp_path, monkeypatch):
    """A file has the rows of one rank, flushed to the disk. All ranks wait until all files are complete."""
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(size_of(file) > 0), fsync(file)))

    def run(rank, _size):
        nodes, path = torch.tensor([[4, 0], [1]][rank]), tmp_path / f"rows-{rank}"
        row_table.write_rows(str(path), [Slower([10, 11, 12, 13, 14]), Slower([0.0, 0.1, 0.2, 0.3, 0.4])], nodes)
        files = sorted(file.name for file in tmp_path.iterdir() if file.stat().st_size)  # without empty files
        found = [Slower([0] * 5), Slower([0.0] * 5)]
        start = time.monotonic()
        row_table.read_rows(str(path), found, nodes)
        waited = time.monotonic() - start > 0.3
        return files, flushed, [len(rows) for rows in torch.load(path)], list(map(list, found)), waited

    got = on_ranks(run, 2)
    rows = [[[10, 0, 0, 0, 14], [0.0, 0, 0, 0, 0.4]], [[0, 11, 0, 0, 0], [0, 0.1, 0, 0, 0]]]
    for _, _, _, tables, _ in got:
        tables[1] = [round(value, 4) for value in tables[1]]
    expected = [(["rows-0", "rows-1"], [True], [2 - rank] * 2, rows[rank], True) for rank in range(2)]
    assert got == expected
