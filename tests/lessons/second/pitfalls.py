"""A second solution of the holes in ``pitfalls.py``."""

import os
import socket
import sys
import threading
import time
import traceback
from multiprocessing import connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def start_ranks(function, world_size, *args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _, port = free.getsockname()
    threads = len(os.sched_getaffinity(0)) // world_size or 1
    spawned = mp.get_context("spawn")
    ranks = [spawned.Process(target=function, args=(r, world_size, port, threads, *args)) for r in range(world_size)]
    for process in ranks:
        process.start()
    return ranks


def first_failure(processes, seconds):
    numbers, deadline = {process.sentinel: number for number, process in enumerate(processes)}, time.time() + seconds
    try:
        while numbers:
            ended = connection.wait(list(numbers), max(0.0, deadline - time.time()))
            if not ended:
                raise TimeoutError("the processes still run")
            for sentinel in ended:
                number = numbers.pop(sentinel)
                processes[number].join()
                if processes[number].exitcode != 0:
                    return number, processes[number].exitcode
        return None
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def random_epoch(ids, seed, epoch, rank, world_size):
    torch.manual_seed(seed * 1_000_000 + epoch * 1_000 + 999)
    order = torch.randperm(ids.numel())
    torch.manual_seed(seed * 1_000_000 + epoch * 1_000 + rank)
    return ids.index_select(0, order[torch.arange(rank, ids.numel(), world_size)])


def train_joined(model, optimizer, batches, loss_of):
    queue, steps = list(batches), 0
    lengths = [None] * dist.get_world_size()
    dist.all_gather_object(lengths, len(queue))
    for steps in range(1, max(lengths) + 1):
        present = sum(length >= steps for length in lengths)
        model.zero_grad()
        if steps <= len(queue):
            (loss_of(model, queue[steps - 1]) / present).backward()
        for weight in model.parameters():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(gradient)
            weight.grad = gradient
        optimizer.step()
    return steps


class Watchdog:
    def watch(self):
        while True:
            stepped = self.progress.wait(self.seconds)
            if not stepped:
                self.print_stacks()
                self.progress.wait(None)
            self.progress.clear()
            if self.end:
                return

    def print_stacks(self):
        text = f"rank {os.getenv('RANK')}: no step for {self.seconds} s\n"
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.ident in frames:
                stack = "".join(traceback.format_stack(frames[thread.ident]))
                text += f"thread {thread.name}\n{stack}"
        print(text, end="", file=self.file, flush=True)
