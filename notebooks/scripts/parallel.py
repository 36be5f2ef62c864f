"""Train data parallel. Average the gradients of all ranks, also in buckets during the backward pass (lesson 05)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def broadcast_model(model):
    """Copy the parameters and buffers of rank 0 to all ranks. ``model.state_dict()`` returns both without a copy."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_gradients(model):
    """Replace each gradient by its mean over all ranks.

    All ranks must call this function with the same model. Parameters without a gradient are skipped on all ranks.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def share_of(batch, rank, world_size):
    """Return the share of this rank, an int64 tensor with some of the IDs in ``batch``, an int64 tensor (n,).

    Each ID is in one share, and the sizes differ by at most one. A share is empty if n is less than ``world_size``.
    """
    return batch[rank::world_size]


def share_loss(scores, labels, batch_size, world_size):
    """Return the loss of a share, so that the plain mean over all ranks is the mean cross-entropy of the batch.

    ``scores`` (k, classes) and ``labels`` (k,) belong to the share, and ``batch_size`` counts the whole batch. A share
    may be empty. Then its loss is 0, and ``backward()`` must still compute gradients (zeros).
    """
    total = F.cross_entropy(scores, labels, reduction="sum")
    return total * world_size / batch_size


def train_step(model, optimizer, x, y, batch, average):
    """Train one step on this rank's share of a batch, and return the mean loss of the batch, a float.

    The ranks make the same step as one process with the whole batch, and all of them return the same loss.

    Args:
        x, y: all examples and their labels, with rows for the IDs in ``batch``.
        average: function without arguments that averages the gradients of all ranks.
    """
    world_size = dist.get_world_size()
    ids = share_of(batch, dist.get_rank(), world_size)
    loss = share_loss(model(x[ids]), y[ids], len(batch), world_size)
    optimizer.zero_grad()
    loss.backward()
    average()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / world_size


def make_buckets(parameters, limit):
    """Return lists of parameters, called buckets, in the order in which ``backward()`` computes the gradients.

    This order starts with the last parameter. Fill a bucket before you start the next one. A bucket has at most
    ``limit`` bytes, unless its only parameter is larger. Skip parameters that do not require a gradient.
    """
    buckets, size = [], 0
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        needed = parameter.numel() * parameter.element_size()
        if not buckets or size + needed > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += needed
    return buckets


class BucketAverage:
    """Average the gradients in buckets, while ``backward()`` computes the gradients of other buckets."""

    def __init__(self, model, limit=25 * 2**20):
        self.buckets = make_buckets(model.parameters(), limit)
        self.done = set()  # parameters whose gradients are complete
        self.running = []  # a pair (flat tensor, work) for each started bucket, in the order of self.buckets
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        """Add a parameter to ``done``. PyTorch calls this function when ``parameter.grad`` is complete.

        Then start the next bucket in ``buckets`` for as long as all its parameters are in ``done``. All ranks start
        the buckets in this order, so a complete bucket waits for the buckets in front of it.
        """
        self.done.add(parameter)
        while len(self.running) < len(self.buckets) and self.done.issuperset(self.buckets[len(self.running)]):
            self.start(self.buckets[len(self.running)])

    def start(self, bucket):
        """Copy the gradients of a bucket into one flat tensor, start its sum over all ranks, and do not wait.

        Append the pair (tensor, work) to ``running``. ``dist.all_reduce(..., async_op=True)`` returns the work. If a
        parameter has no gradient on this rank, use zeros.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.running.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        """Replace all gradients by their means over all ranks. Call this function after ``backward()``.

        Start the remaining buckets, wait for each work (``work.wait()``), and set ``grad`` of each parameter to its
        mean, even if it was None on this rank. Then empty ``done`` and ``running`` for the next step.
        """
        for bucket in self.buckets[len(self.running) :]:
            self.start(bucket)
        for bucket, (flat, work) in zip(self.buckets, self.running):
            work.wait()
            means = (flat / dist.get_world_size()).split([p.numel() for p in bucket])
            for parameter, mean in zip(bucket, means):
                parameter.grad = mean.view_as(parameter)
        self.done, self.running = set(), []
