"""Batches that a thread makes while the one before is computed: ``from ahead import made_by_worker``."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from train import batches, load_subtensor

# One thread makes all batches, also those that are not made ahead: each thread of DGL's has random numbers of its own.
worker = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))


def with_rows(g, ids, args, epoch):
    for input_nodes, seeds, blocks in batches(g, ids, args, epoch):
        yield blocks, *load_subtensor(g, seeds, input_nodes)


def made_by_worker(items, depth):
    """The items of an iterator, each begun ``depth`` items before it is used; with 0 when it is asked for."""
    pending, end = deque(), object()
    while True:
        while len(pending) <= depth:
            pending.append(worker.submit(next, items, end))
        item = pending.popleft().result()
        if item is end:
            return
        yield item
