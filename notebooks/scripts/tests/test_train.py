"""Tests of ``train.py``. They start one to three real ranks."""

import functools
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import train
from support.processes import fork

on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=30)
SHARES = [torch.arange(100, 109), torch.arange(200, 207), torch.arange(300, 301)]  # of three ranks


def steps_of(seed, batch_size=4):
    found = on_ranks(lambda rank, _size: train.make_steps(SHARES[rank], batch_size, seed), 3)
    return [[(part.tolist(), int(count)) for part, count in steps] for steps in found]


def test_equal_steps():
    """The rank with 9 seeds needs 3 steps of at most 4. The rank with one seed makes 3 steps, two without seeds."""
    found = steps_of(0)
    got = [[len(part) for part, _ in steps] for steps in found], [[count for _, count in steps] for steps in found]
    expected = [[3, 3, 3], [3, 2, 2], [1, 0, 0]], [[7, 5, 5]] * 3
    assert got == expected


def test_epoch_has_every_seed_once():
    """The steps of a rank contain each of its seeds once."""
    got = [sorted(seed for part, _ in steps for seed in part) for steps in steps_of(1, 2)]
    expected = [share.tolist() for share in SHARES]
    assert got == expected


def test_order_depends_on_the_seed():
    """Shuffle with a new generator. The global generator of torch stays as it is, because dropout uses it."""
    got = on_ranks(
        lambda *_: (torch.manual_seed(5).initial_seed(), train.make_steps(SHARES[0], 4, 1), torch.get_rng_state())[2], 1
    )[0]
    expected = torch.manual_seed(5).get_state()
    assert torch.equal(got, expected)
    got, expected = steps_of(1) == steps_of(1), steps_of(1) != steps_of(2)
    assert got is expected is True


def seeds_and_double(factor, seeds):
    return seeds.tolist(), (factor * seeds).tolist()


def test_load_samples(tiny):
    """Yield sample(seeds) for every step, in their order, also without seeds. DGL can send collate_fn to a process."""
    sample = functools.partial(seeds_and_double, 2)
    steps = [(torch.tensor([3, 0, 4]), 5), (torch.tensor([2]), 2), (torch.tensor([], dtype=torch.int64), 1)]
    loader = train.load_samples(sample, steps)
    got = list(loader), pickle.loads(pickle.dumps(loader.collate_fn))([1])
    expected = [([3, 0, 4], [6, 0, 8]), ([2], [4]), ([], [])], ([2], [4])
    assert got == expected


class Task:
    """Learn y = 2 x with a linear model. Each seed is its x. The second optimizer counts its steps."""

    def __init__(self, ids, batch_size):
        self.args = SimpleNamespace(batch_size=batch_size, seed=3)
        self.ids = {"train": ids}
        linear = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(linear.weight)
        self.model = DistributedDataParallel(linear)
        self.calls = []
        counter = SimpleNamespace(
            zero_grad=lambda **_: self.calls.append("zero"), step=lambda: self.calls.append("step")
        )
        self.optimizers = [torch.optim.SGD(linear.parameters(), lr=0.01), counter]

    def sample(self, seeds):
        return seeds.float()[:, None]

    def read(self, sample):
        assert self.model.training, "call model.train()"
        return sample, 2 * sample

    def loss(self, batch):
        x, y = batch
        return (self.model(x) - y).square().sum()


def one_process(batches):
    """Return the mean loss and the weight after SGD on the batches of all ranks."""
    weight, total = 0.0, 0.0
    for x in batches:
        total += ((weight - 2) ** 2 * x**2).sum().item()
        weight -= 0.01 * (2 * (weight - 2) * x**2).mean().item()
    return total / sum(map(len, batches)), weight


@pytest.mark.parametrize("sizes", [[7], [3, 3], [5, 1], [4, 1, 0]])
def test_epoch_equals_one_process(tiny, sizes):
    """Each step uses the mean over the seeds of all ranks. All ranks make all steps and return the mean loss."""
    shares = [part.long() for part in torch.arange(1.0, sum(sizes) + 1).split(sizes)]

    def run(rank, _size):
        task = Task(shares[rank], 2)
        task.model.eval()
        loss = train.train_epoch(task, 4)
        return loss, task.model.module.weight.item(), "".join(call[0] for call in task.calls)

    steps = -(-max(sizes) // 2)
    orders = [share[torch.randperm(len(share), generator=torch.Generator().manual_seed(3004))] for share in shares]
    batches = [torch.cat(parts).float() for parts in zip(*(order.tensor_split(steps) for order in orders))]
    loss, weight = one_process(batches)
    got = on_ranks(run, len(sizes))
    expected = [(pytest.approx(loss, rel=1e-5), pytest.approx(weight, rel=1e-5), "zs" * steps)] * len(sizes)
    assert got == expected


def test_ranks_do_not_wait_for_each_other_after_the_epoch(tiny):
    """All ranks leave train_epoch after the same number of collective operations."""

    def run(rank, _size):
        train.train_epoch(Task(torch.arange(1, 2 + 3 * rank), 1), 0)
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    got, expected = on_ranks(run, 2), [2.0] * 2
    assert got == expected
