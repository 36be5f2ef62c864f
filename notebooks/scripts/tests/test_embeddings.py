"""Tests of ``embeddings.py``. They start one or two real ranks."""

import functools
import os
from types import SimpleNamespace

import dgl
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.distributed as dist
from dgl.distributed import DistEmbedding

import embeddings
from node_task import NodeTask
from support.processes import fork

on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=30)
ALL = torch.arange(6)


def new_task(**options):
    """Return a task without a model and an optimizer."""
    task = embeddings.EmbeddingTask.__new__(embeddings.EmbeddingTask)
    task.args = SimpleNamespace(**{"checkpoint": "", "best": "", "dropout": 0.0, **options})
    task.device = torch.device("cpu")
    return task


def new_table(tiny):
    return DistEmbedding(6, 2, name="rows", part_policy=tiny.get_node_partition_policy("_N"))


def blocks_of(tiny, seeds):
    return dgl.dataloading.MultiLayerFullNeighborSampler(1).sample_blocks(tiny, torch.tensor(seeds))[2]


def test_read(tiny):
    """Return the rows of the input nodes and the labels of the seeds. The loss gives the table a gradient."""

    def run(_rank, _size):
        task, blocks = new_task(), blocks_of(tiny, [2, 0])
        task.table = new_table(tiny)
        task.table.weight[ALL] = ALL[:, None] * torch.tensor([1.0, 10.0])
        task.label = tiny.ndata["label"]
        _, x, y = task.read((2, blocks))
        (3 * x).sum().backward()
        ((ids, rows),) = task.table._trace
        inputs = blocks[0].srcdata[dgl.NID]
        assert torch.equal(ids, inputs), "read the rows of the source nodes of the first block"
        return x.tolist(), [[i, 10.0 * i] for i in inputs.tolist()], y.tolist(), y.dtype, rows.grad.unique().tolist()

    rows, right, *others = on_ranks(run, 1)[0]
    got, expected = (rows, *others), (right, [0, 0], torch.int64, [3.0])
    assert got == expected


def test_read_drops_whole_rows(tiny):
    """With dropout 0.75, about three quarters of the rows are zero. The others are multiplied by 4."""

    def run(_rank, _size):
        task, blocks = new_task(dropout=0.75), blocks_of(tiny, [0])
        task.table = new_table(tiny)
        task.table.weight[ALL] = torch.ones(6, 2)
        task.label = tiny.ndata["label"]
        torch.manual_seed(0)
        rows = torch.cat([task.read((1, blocks))[1] for _ in range(300)])
        dropped = (rows == 0).float().mean().item()
        return sorted(set(map(tuple, rows.tolist()))), abs(dropped - 0.75) < 0.05

    got, expected = on_ranks(run, 1)[0], ([(0.0, 0.0), (4.0, 4.0)], True)
    assert got == expected


def test_read_without_seeds(tiny):
    """The sample has blocks of node 0, but no seeds. Return rows without a gradient, and record no read."""

    def run(_rank, _size):
        task = new_task()
        task.table = new_table(tiny)
        task.label = tiny.ndata["label"]
        (block,), x, y = task.read((0, blocks_of(tiny, [0])))
        return len(x) == block.num_src_nodes(), x.requires_grad, y.tolist(), y.dtype, len(task.table._trace)

    got, expected = on_ranks(run, 1)[0], (True, False, [], torch.int64, 0)
    assert got == expected


def run_checkpoint(folder, rank):
    """Save three epochs. Return the files of both ranks whenever ``NodeTask.save`` has been called, and at the end."""
    task, seen = new_task(checkpoint=f"{folder}/c"), []
    task.nodes, task.tensors = ALL[rank::2], [torch.zeros(6, 2), torch.zeros(6)]

    def save(_task, _epochs):
        seen.append(sorted(path.name for path in folder.iterdir()))
        dist.barrier()

    NodeTask.save = save
    for epoch in range(3):
        for tensor in task.tensors:
            tensor[task.nodes] = tensor[task.nodes] + epoch + 1
        task.save([{"epoch": number} for number in range(epoch + 1)])
    dist.barrier()
    return seen, sorted(path.name for path in folder.iterdir())


def test_save(tmp_path):
    """The row files of all ranks are complete before NodeTask.save. Until then, the previous files remain."""
    both = [[f"c-{epochs}-rows_{rank}" for rank in range(2)] for epochs in range(4)]
    got = on_ranks(lambda rank, _size: run_checkpoint(tmp_path, rank), 2)
    expected = [([both[1], both[1] + both[2], both[2] + both[3]], both[3])] * 2
    assert got == expected
    (tmp_path / "none").mkdir()

    def without(_rank, _size):
        NodeTask.save = lambda *_: os.mkdir(tmp_path / "none" / "saved")
        new_task().save([{"epoch": 0}])
        return os.listdir(tmp_path / "none"), [name for name in os.listdir() if "rows" in name]

    got, expected = on_ranks(without, 1), [(["saved"], [])]
    assert got == expected


def test_resume(tmp_path):
    """Read the rows and the state of the epochs in the checkpoint, into the nodes of this rank."""

    def run(rank, _size):
        task = new_task(checkpoint=f"{tmp_path}/c")
        task.nodes, task.tensors = ALL[rank::2], [torch.zeros(6, 2), torch.zeros(6)]
        for number in (1, 2):
            torch.save([torch.full((3, 2), 1.0 * number), torch.full((3,), 5.0 * number)], task.row_file(number))
        dist.barrier()
        NodeTask.resume = lambda _task: [{"epoch": 0}]
        epochs = task.resume()
        return len(epochs), [tensor.flatten().tolist() for tensor in task.tensors]

    got = on_ranks(run, 2)
    one, two = [1.0, 1.0, 0.0, 0.0] * 3, [0.0, 0.0, 1.0, 1.0] * 3
    expected = [(1, [one, [5.0, 0.0] * 3]), (1, [two, [0.0, 5.0] * 3])]
    assert got == expected


def test_resume_without_files(tmp_path):
    """Without a checkpoint, the rows stay as they are. If only the row file is missing, raise FileNotFoundError."""

    def run(_rank, _size):
        task, got = new_task(checkpoint=f"{tmp_path}/c"), []
        task.nodes, task.tensors = ALL, [torch.ones(6, 2)]
        for epochs in ([], [{"epoch": 0}]):
            NodeTask.resume = lambda _task, epochs=epochs: epochs
            try:
                got.append(task.resume())
            except FileNotFoundError as error:
                got.append(type(error).__name__)
        return got, task.tensors[0].sum().item()

    got, expected = on_ranks(run, 1)[0], ([[], "FileNotFoundError"], 12.0)
    assert got == expected
