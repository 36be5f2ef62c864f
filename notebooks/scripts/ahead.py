"""Prefetch batches in a thread while the model computes, with ``from ahead import made_by_worker``."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from train_before import batches, load_subtensor

# One thread makes all batches, with and without prefetching, because each DGL thread has a separate random generator.
worker = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def with_rows(g, ids, args, epoch):
    for input_nodes, seeds, blocks in batches(g, ids, args, epoch):
        yield blocks, *load_subtensor(g, seeds, input_nodes)


def made_by_worker(items, depth):
    """Yield the items of an iterator. The thread starts each item ``depth`` items early (0 means on request)."""
    pending, end = deque(), object()
    while True:
        while len(pending) <= depth:
            pending.append(worker.submit(next, items, end))
        item = pending.popleft().result()
        if item is end:
            return
        yield item
