"""Run one step per batch on each rank (lesson 04). Usage: torchrun ... parts_steps.py STEPS_0 STEPS_1 [agree]"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from partition import agree_on_steps

dist.init_process_group("gloo")
group = dist.new_group(timeout=timedelta(seconds=4))
rank = dist.get_rank()
steps = int(sys.argv[1 + rank])
if "agree" in sys.argv:
    steps = agree_on_steps(steps)
made = 0
try:
    while made < steps:
        dist.all_reduce(torch.ones(1), group=group)
        made += 1
    said = f"{steps} steps, done"
except RuntimeError as error:
    said = f"waits in step {made + 1}. {type(error).__name__}: {str(error).split('] ')[-1]}"
print(f"rank {rank}: {said}\n", end="", flush=True)  # a single write, because two ranks print at once
if "agree" not in sys.argv:
    time.sleep(6)  # the rank continues with other work
