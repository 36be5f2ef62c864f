"""Measure the total training steps per second of all ranks for increasing numbers of OpenMP threads per rank."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from leave import leave


def steps_in(seconds, model, batch):
    start, steps = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        model(batch).sum().backward()
        steps += 1
    return steps / (time.perf_counter() - start)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.ReLU(), torch.nn.Linear(400, 40))
    batch = torch.rand(400, 400)
    cpus = len(os.sched_getaffinity(0))
    rates = {threads: [] for threads in (max(1, cpus // dist.get_world_size()), cpus, 4 * cpus, 8 * cpus)}
    for repeat in range(4):
        for threads, found in rates.items():
            torch.set_num_threads(threads)
            steps_in(0.05, model, batch)  # warm up
            dist.barrier()
            rate = torch.tensor(steps_in(0.3, model, batch))
            dist.all_reduce(rate)
            if repeat > 0:
                found.append(rate.item())
    if dist.get_rank() == 0:
        Path(__file__).with_name("out").mkdir(exist_ok=True)
        Path(__file__).with_name("out").joinpath("threads.json").write_text(json.dumps(rates))
    leave()
