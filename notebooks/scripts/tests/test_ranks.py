"""Tests of ``ranks.py``. They start one to four real ranks."""

import math
import os
import threading
import time

import dgl
import pytest
import torch
import torch.nn.functional as F
from scores import Scores
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
from support.processes import fork

IDS = torch.arange(100, 109)
GRAPH = dgl.graph(([1, 2, 0, 3, 2, 4, 5, 5, 1], [0, 0, 2, 2, 3, 3, 4, 0, 5]), num_nodes=6)
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
GRAPH.ndata["feat"], GRAPH.ndata["label"] = torch.eye(6), LABELS
FULL = dgl.dataloading.MultiLayerFullNeighborSampler(1)


def on_ranks(count, function):
    return fork(function, count, backend="gloo", threads=1, timeout=40)


def steps_of(count):
    found = on_ranks(count, lambda *_: ranks.rank_batches(IDS, 4, 0))
    return [[part.tolist() for part, _ in step] for step in zip(*found)], [int(number) for _, number in found[-1]]


def test_each_step_has_a_whole_batch():
    """Divide every batch among the ranks. Each rank returns all steps, with the number of nodes in the whole batch."""
    parts, numbers = steps_of(3)
    got = [sorted(map(len, step)) for step in parts], numbers
    expected = [[1, 1, 2], [1, 1, 2], [0, 0, 1]], [4, 4, 1]
    assert got == expected


def test_every_node_once_and_in_the_same_step():
    """In each step, three ranks together have the nodes of one rank. An epoch has all IDs. All ranks shuffle alike."""
    one, three = ([sorted(node for part in step for node in part) for step in steps_of(count)[0]] for count in (1, 3))
    got, expected = (three, sorted(node for step in three for node in step)), (one, IDS.tolist())
    assert got == expected


def test_order_changes_with_the_epoch():
    """Shuffle with a new generator whose seed depends on the epoch, and do not change the global generator."""

    def compare(*_):
        before = torch.get_rng_state()
        a, b, c = (torch.cat([part for part, _ in ranks.rank_batches(IDS, 4, epoch)]).tolist() for epoch in (0, 1, 0))
        return a != b, a == c, torch.equal(before, torch.get_rng_state())

    got, expected = on_ranks(1, compare), [(True, True, True)]
    assert got == expected


@pytest.mark.parametrize(("totals", "mean"), [([1, 0, 0], 0.25), ([2**26 - 4, 8, 0], 2**24 + 1)])
def test_weighted_reduce(totals, mean):
    """Add the totals and the weights of all ranks in float64, then divide. Every rank returns the same float."""
    got = on_ranks(3, lambda rank, _size: ranks.weighted_reduce(totals[rank], [1, 3, 0][rank]))
    expected = [mean] * 3
    assert got == expected


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_steps_are_those_of_one_process(count):
    """Each step uses the gradient of the mean loss over the nodes of all ranks, even if one rank has no node."""
    certain = torch.zeros(6, 3)
    certain[3, LABELS[3]] = 100.0  # the loss of node 3 is zero, and that of the other nodes is log(3)
    optimizer = torch.optim.SGD((model := Scores(certain.clone())).parameters(), lr=1.0)

    def train(rank, size):
        pairs = [(batch[rank::size], len(batch)) for batch in (torch.arange(5), torch.tensor([5]))]
        loss = ranks.train_epoch(DistributedDataParallel(model).eval(), optimizer, GRAPH, pairs, FULL)
        return [loss, *(model.weight.detach() - certain).flatten().tolist()]

    change = (F.one_hot(LABELS) - 1 / 3) / torch.tensor([[5], [5], [5], [float("inf")], [5], [1]])
    got = torch.tensor(on_ranks(count, train))
    expected = torch.tensor([[math.log(3) * 5 / 6, *change.flatten().tolist()]] * count)
    assert torch.allclose(got, expected, atol=1e-4)


class CountedSampler:
    def __init__(self):
        self.sizes = []

    def sample_blocks(self, graph, seeds):
        self.sizes.append(len(seeds))
        return FULL.sample_blocks(graph, seeds)


@pytest.mark.parametrize(("nodes", "share"), [([0, 1, 3, 5], 0.75), ([4], 0.0)])
def test_evaluate_on_three_ranks(nodes, share):
    """Divide the correct predictions of all ranks by all nodes. Predict each node on one rank, in batches."""
    model = Scores(F.one_hot(torch.tensor([0, 1, 0, 2, 2, 1])).float(), mode=False)  # predicted classes

    def evaluate(*_):
        accuracy = ranks.evaluate(model.train(), GRAPH, torch.tensor(nodes), sampler := CountedSampler(), batch_size=1)
        return accuracy, sum(sampler.sizes), max(sampler.sizes, default=0)

    accuracies, counts, largest = zip(*on_ranks(3, evaluate))
    got, expected = [*accuracies, sum(counts), max(largest)], [*[share] * 3, len(nodes), 1]  # 1 is the batch size
    assert got == pytest.approx(expected)


class Slow(nn.Linear):
    def state_dict(self, *args, **options):
        time.sleep(0.3)
        return super().state_dict(*args, **options)


def test_save_best(tmp_path):
    """Rank 0 writes a new file and renames it. No rank returns before the rename. Never write into the old file."""

    def save(rank, _size):
        model, path, best, found = DistributedDataParallel(Slow(1, 1)), tmp_path / "best.pt", 0.0, []
        os.replace = None if rank else os.replace  # only rank 0 writes
        for weight, value in ((0.5, 0.5), (0.8, 0.8), (0.6, 0.6), (0.9, 0.8)):  # 0.8 is not higher than 0.8
            model.module.weight.data.fill_(weight)
            best = ranks.save_best(model, value, best, path)
            found.append((best, round(torch.load(path)["weight"].item(), 1)))
            torch.distributed.barrier()
            if rank == 0 and value == 0.5:
                os.link(path, tmp_path / "old.pt")
        return found, round(torch.load(tmp_path / "old.pt")["weight"].item(), 1), len(os.listdir(tmp_path))

    got = on_ranks(2, save)
    expected = [([(0.5, 0.5), *[(0.8, 0.8)] * 3], 0.5, 2)] * 2
    assert got == expected


def add(a, b=0):
    if b is None:
        raise SystemExit(3)
    time.sleep(0.1)  # the caller must wait for the thread
    return a + b, threading.current_thread() is not threading.main_thread()


def test_fix_openmp():
    """Pass on arguments and result. An exception ends only its thread, so store it and raise it in the caller."""
    fixed = ranks.fix_openmp(add)  # each call has its own result
    for b, error in ((None, SystemExit), ("a label", TypeError)):
        with pytest.raises(error):
            fixed(2, b=b)
    got, expected = fixed(2, b=3), (5, True)
    assert got == expected
