"""Tests of ``parallel.py``, most of them on real ranks."""

import functools

import pytest
import torch
import torch._dynamo  # the first optimizer imports this module for seconds, here once and not in each rank
import torch.nn.functional as F
from torch import nn

import parallel
from support.processes import fork

X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0], [0.0, 1.0]])
Y = torch.tensor([0, 1, 1, 0, 2])
BATCHES = [torch.tensor([4, 2, 0, 1]), torch.tensor([3, 4])]  # with three ranks, a share of the last one is empty
on_ranks = functools.partial(fork, backend="gloo", threads=1, timeout=60)


def new_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def gradients(model):
    return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]


def test_broadcast_model():
    """Broadcast from rank 0 in place. Include buffers, such as the running mean of a batch norm."""

    def run(rank, _size):
        model = nn.BatchNorm1d(1)
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 5)
        parallel.broadcast_model(model)
        return [tensor.item() for tensor in model.state_dict().values()]

    got = on_ranks(run, 2)
    expected = [[5, 5, 5, 5, 5]] * 2
    assert got == expected


def test_average_of_three_ranks():
    """Divide the sum by the world size. Skip a parameter whose gradient is None, because it is frozen."""

    def run(rank, _size):
        model = nn.Linear(2, 1)
        model.weight.requires_grad_(False)
        model.bias.grad = torch.tensor([3.0 * rank])
        parallel.average_gradients(model)
        return gradients(model)

    got = on_ranks(run, 3)
    expected = [[None, [3.0]]] * 3
    assert got == expected


@pytest.mark.parametrize(("count", "ranks"), [(8, 2), (10, 4), (7, 3), (2, 3), (5, 1)])
def test_shares(count, ranks):
    """The shares of all ranks contain each ID once, and no share has two IDs more than another."""
    batch = 100 - torch.arange(count)
    shares = [parallel.share_of(batch, rank, ranks) for rank in range(ranks)]
    got = sorted(torch.cat(shares).tolist()), max(map(len, shares)) - min(map(len, shares)) <= 1
    expected = sorted(batch.tolist()), True
    assert got == expected


def test_share_loss():
    """The mean over four ranks divides by 4. Afterwards, each of the 5 examples has the weight 1/5. Rank 3 has none."""
    scores = X @ torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]])
    losses = [parallel.share_loss(scores[ids], Y[ids], 5, 4) for ids in ([0, 3], [1, 4], [2], [])]
    got = float(sum(losses)) / 4
    expected = F.cross_entropy(scores, Y).item()
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "kind"), [(1, "all gradients"), (3, "all gradients"), (3, "buckets")])
def test_steps_equal_those_of_one_process(ranks, kind):
    """Call zero_grad, backward, average and step in this order, on the share only. Sum the losses over the ranks."""

    def run(_rank, _size):
        model = new_model()
        buckets = parallel.BucketAverage(model, limit=80) if kind == "buckets" else None
        average = buckets.finish if buckets else lambda: parallel.average_gradients(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = [parallel.train_step(model, optimizer, X, Y, batch, average) for batch in BATCHES]
        return [*losses, *nn.utils.parameters_to_vector(model.parameters()).tolist()]

    model, losses = new_model(), []
    for batch in BATCHES:
        losses.append(F.cross_entropy(model(X[batch]), Y[batch]))
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(losses[-1], [*model.parameters()])):
            parameter.data -= 0.5 * gradient
    got = torch.tensor(on_ranks(run, ranks))
    expected = torch.stack([*losses, *nn.utils.parameters_to_vector(model.parameters())]).expand_as(got)
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(("limit", "sizes"), [(32, [[4, 2], [5, 3]]), (1, [[4], [2], [5], [3]])])
def test_buckets(limit, sizes):
    """Start with the last parameter. A float32 has 4 bytes, and a bucket may have exactly the limit."""
    parameters = [nn.Parameter(torch.zeros(size), requires_grad=size != 9) for size in (3, 5, 9, 2, 4)]
    got = [[p.numel() for p in bucket] for bucket in parallel.make_buckets(iter(parameters), limit)]
    expected = sizes
    assert got == expected


def test_buckets_start_during_backward():
    """Start a bucket in ready, as soon as its last gradient is complete. Do not wait for the end of backward."""

    def run(_rank, _size):
        model, early = new_model(), []
        average = parallel.BucketAverage(model, limit=92)
        model[0].weight.register_hook(lambda _gradient: early.extend(flat.numel() for flat, _ in average.running))
        model(X).sum().backward()
        average.finish()
        return early

    got = on_ranks(run, 2)
    expected = [[23, 20]] * 2  # the last layer and a bias, then the weight of the layer in front of it
    assert got == expected


def test_all_ranks_start_the_buckets_in_the_same_order():
    """Start all complete buckets that have no incomplete one in front. finish starts the rest, with zeros for None."""

    def run(rank, _size):
        model = nn.ParameterList([torch.zeros(1), torch.zeros(2), torch.zeros(3)])
        average = parallel.BucketAverage(model, limit=4)
        for _step in range(2):
            model.zero_grad()
            for number in [(2, 1), (0, 2, 1)][rank]:
                model[number].grad = torch.full((number + 1,), 10.0 * number + rank)
                average.ready(model[number])
            early = [flat.numel() for flat, _ in average.running]
            average.finish()
        return early, gradients(model)

    got = on_ranks(run, 2)
    expected = [(early, [[0.5], [10.5] * 2, [20.5] * 3]) for early in ([3, 2], [3, 2, 1])]  # rank 0 lacks the last one
    assert got == expected
