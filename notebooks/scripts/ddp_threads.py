"""Measure the training steps per second of all ranks together, for several numbers of threads per rank (lesson 07).

Run torchrun --standalone --nproc_per_node 2 scripts/ddp_threads.py.
"""

import os
import time

import torch
import torch.distributed as dist

from leave import leave


def steps_per_second(model, batch, seconds):
    start, steps = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        model(batch).sum().backward()
        steps += 1
    return steps / (time.perf_counter() - start)


dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.ReLU(), torch.nn.Linear(400, 40))
batch = torch.rand(400, 400)
cpus = len(os.sched_getaffinity(0))
rates = {threads: [] for threads in (max(1, cpus // dist.get_world_size()), cpus, 4 * cpus, 8 * cpus)}
for _ in range(3):
    for threads, found in rates.items():
        torch.set_num_threads(threads)
        steps_per_second(model, batch, 0.1)  # warm up
        dist.barrier()
        rate = torch.tensor(steps_per_second(model, batch, 0.3))
        dist.all_reduce(rate)
        found.append(rate.item())
if dist.get_rank() == 0:
    for threads, found in rates.items():
        low, middle, high = sorted(found)
        print(f"threads in each rank: {threads:2}  {middle:5.0f} steps per second ({low:.0f} to {high:.0f})")
leave()
