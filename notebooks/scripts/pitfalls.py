"""Repair failures of training in several processes, train with uneven batches, and print stacks (lesson 07)."""

import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist


def start_ranks(function, world_size, *args):
    """Start the ranks of a job and return a list of their ``multiprocessing`` processes. Do not wait for them.

    Rank r calls ``function(r, world_size, port, threads, *args)`` in a fresh interpreter, so the use of OpenMP or CUDA
    in this process does not affect a rank. All ranks of a job get the same ``port``, a free port of 127.0.0.1.
    ``threads`` is the fair share of the CPUs in ``os.sched_getaffinity(0)``, rounded down, but at least 1.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:  # port 0 lets the kernel choose a free port
        port = server.getsockname()[1]
    threads = max(1, len(os.sched_getaffinity(0)) // world_size)
    context = multiprocessing.get_context("spawn")
    processes = []
    for rank in range(world_size):
        process = context.Process(target=function, args=(rank, world_size, port, threads, *args))
        process.start()
        processes.append(process)
    return processes


def first_failure(processes, seconds):
    """Wait until a process has failed or all have ended.

    Kill the remaining processes and wait until they have ended (``join``), also before an error is raised.

    Args:
        processes: list of ``multiprocessing`` processes. ``exitcode`` is None while a process runs. A process has
            failed if its exit code is neither None nor 0.

    Returns:
        Position in the list and exit code of the process that failed, or None if all ended with exit code 0.

    Raises:
        TimeoutError: no process has failed, and some still run after this number of seconds.
    """
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            codes = [process.exitcode for process in processes]  # None while a process runs
            for number, code in enumerate(codes):
                if code not in (None, 0):
                    return number, code
            if None not in codes:
                return None
            time.sleep(0.02)
        raise TimeoutError(f"processes still run after {seconds} s")
    finally:
        for process in processes:
            process.kill()
            process.join()


def random_epoch(ids, seed, epoch, rank, world_size):
    """Return the nodes of this rank in an epoch, and seed the random numbers of this rank.

    All ranks shuffle ``ids`` in the same order, which depends only on the seed and the epoch. Rank r takes the
    positions r, r + world_size, and so on. Dropout uses the global generator of torch. Seed this generator with a
    number that differs for each (seed, epoch, rank). Epochs and ranks are below 1,000. Equal arguments result in equal
    nodes and equal random numbers.
    """
    shared = torch.Generator().manual_seed(1000 * seed + epoch)
    order = ids[torch.randperm(len(ids), generator=shared)]
    torch.manual_seed((1000 * seed + epoch) * 1000 + rank)
    return order[rank::world_size]


def train_joined(model, optimizer, batches, loss_of):
    """Train until no rank has a batch left, and return the number of steps (int), which is equal on all ranks.

    In each step, the gradient is the mean over the ranks that still have a batch. A rank without a batch contributes
    zeros, and its optimizer makes the same step. The weights of all ranks are equal at the start and after each step.

    Args:
        model: a module without DistributedDataParallel. A gradient that is None on this rank counts as zeros.
        batches: iterable of batches, none of which is None. It can be empty, and it can have no length.
        loss_of: ``loss_of(model, batch)`` returns the loss, a scalar.
    """
    batches, steps = iter(batches), 0
    while True:
        batch = next(batches, None)
        active = torch.tensor(float(batch is not None))
        dist.all_reduce(active)
        if active == 0:
            return steps
        optimizer.zero_grad()
        if batch is not None:
            loss_of(model, batch).backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= active
        optimizer.step()
        steps += 1


class Watchdog:
    """Print stacks if the program makes no step: ``with Watchdog(30) as dog:``, and ``dog.step()`` after each step."""

    def __init__(self, seconds, file=None):
        self.seconds, self.file = seconds, file or sys.stderr
        self.progress, self.end = threading.Event(), False
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def step(self):
        self.progress.set()

    def __exit__(self, *_):
        self.end = True
        self.progress.set()  # wakes up the thread
        self.thread.join(5)

    def watch(self):
        """Wait for ``progress``, which ``step`` sets, and clear it. Repeat this until ``end`` is true.

        This method runs in the watchdog's thread. Call ``print_stacks`` if no step occurs within ``seconds``. Then wait
        for the next step without a limit, so a program that waits forever prints its stacks once.
        ``progress.wait(seconds)`` returns False after this time.
        """
        while not self.end:
            if not self.progress.wait(self.seconds):
                self.print_stacks()
                self.progress.wait()
            self.progress.clear()

    def print_stacks(self):
        """Write the stacks of all threads except this one to ``file``, in one call of ``write``, and flush the file.

        The first line is "rank R: no step for S s", where R is the environment variable RANK. A line "thread NAME"
        precedes each stack. ``sys._current_frames()`` returns frames by thread ID, ``threading.enumerate()`` lists the
        threads, and ``traceback.format_stack(frame)`` returns lines.
        """
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = [f"rank {os.environ.get('RANK')}: no step for {self.seconds} s\n"]
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                lines += [f"thread {names.get(ident)}\n", *traceback.format_stack(frame)]
        self.file.write("".join(lines))
        self.file.flush()
