"""A second solution of the holes in ``ranks.py``."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F


def rank_batches(ids, batch_size, epoch):
    shuffler = torch.Generator()
    shuffler.manual_seed(10_000 + epoch)
    shuffled = ids.index_select(0, torch.randperm(ids.numel(), generator=shuffler))
    rank, size, steps = dist.get_rank(), dist.get_world_size(), math.ceil(len(ids) / batch_size)
    batches = [shuffled[step * batch_size : (step + 1) * batch_size] for step in range(steps)]
    return [(batch[torch.arange(len(batch)) % size == rank], batch.numel()) for batch in batches]


def weighted_reduce(total, weight):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (total, weight))
    totals, weights = zip(*pairs, strict=True)
    return sum(totals) / sum(weights)


def scores_and_labels(*_args) -> tuple:
    raise NotImplementedError("the piece contains this function")


def train_epoch(model, optimizer, graph, batches, sampler):
    model.train(True)
    factor, losses, nodes = dist.get_world_size(), [], 0
    for mine, everyone in batches:
        optimizer.zero_grad()
        scores, target = scores_and_labels(model, graph, mine, sampler)
        loss = -F.log_softmax(scores, 1).gather(1, target[:, None]).sum()
        (loss * (factor / everyone)).backward()
        optimizer.step()
        losses.append(float(loss))
        nodes += len(mine)
    return weighted_reduce(sum(losses), nodes)


def evaluate(model, graph, ids, sampler, batch_size=1024):
    model.train(False)
    mine = ids.tensor_split(dist.get_world_size())[dist.get_rank()]
    correct = torch.zeros(1, dtype=torch.int64)
    for start in range(0, len(mine), batch_size):
        scores, target = scores_and_labels(model, graph, mine[start : start + batch_size], sampler)
        correct += torch.eq(scores.max(1).indices, target).sum().cpu()
    return weighted_reduce(correct.item(), mine.numel())


def save_best(model, accuracy, best, path):
    if not accuracy > best:
        return best
    if dist.get_rank() == 0:
        new = str(path) + ".new"
        torch.save(model.module.state_dict(), new)
        os.replace(new, path)
    dist.barrier()
    return accuracy


def fix_openmp(function):
    """Return a function that runs ``function`` in a pool of one thread."""

    def call(*args, **options):
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(function, *args, **options).result()

    return call
