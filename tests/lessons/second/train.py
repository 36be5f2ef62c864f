"""A second solution of train.py, written from its docstrings and public tests."""

import functools

import torch
import torch.distributed as dist
from dgl.distributed import DistDataLoader

from ranks import weighted_reduce


def make_steps(ids, batch_size, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    ids = ids[torch.randperm(len(ids), generator=generator)]
    largest = torch.tensor(len(ids))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    num_steps = (int(largest) + batch_size - 1) // batch_size
    parts = list(ids.tensor_split(num_steps))
    counts = torch.tensor([len(part) for part in parts])
    dist.all_reduce(counts)
    return list(zip(parts, counts.tolist(), strict=True))


def load_samples(sample, steps):
    parts = [part for part, _ in steps]
    numbers = torch.arange(len(parts))
    return DistDataLoader(numbers, batch_size=1, collate_fn=functools.partial(sample_step, sample, parts))


def train_epoch(task, epoch):
    task.model.train()
    size = dist.get_world_size()
    seeds = task.ids["train"]
    steps = make_steps(seeds, task.args.batch_size, 1000 * task.args.seed + epoch)
    samples = iter(load_samples(task.sample, steps))
    total = 0.0
    for _, count in steps:
        for optimizer in task.optimizers:
            optimizer.zero_grad()
        loss = task.loss(task.read(next(samples)))
        (loss * (size / count)).backward()
        for optimizer in task.optimizers:
            optimizer.step()
        total += loss.item()
    return weighted_reduce(total, len(seeds))
