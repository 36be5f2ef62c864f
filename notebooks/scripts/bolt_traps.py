"""Test gb.DataLoader in a process group. Usage: torchrun --nproc_per_node 2 scripts/bolt_traps.py alone|both"""

import faulthandler
import os
import resource
import sys
from itertools import pairwise

import dgl.graphbolt as gb
import torch
import torch.distributed as dist

ITEMS = gb.ItemSet(torch.arange(8), names="seed_nodes")


def pipeline():
    """Return a pipeline that should give all eight items to every rank, two at a time."""
    return gb.ItemSampler(ITEMS, batch_size=2)


def print_on_rank(text, found):
    print(f"rank {dist.get_rank()}: {text} {found}\n", end="", flush=True)  # one write, so ranks do not mix lines


def open_files():
    return len(os.listdir("/proc/self/fd"))


def files_per_pass(wrap, passes):
    """Return the number of additional open files after each pass over the batches."""
    counts = [open_files()]
    for _ in range(passes):
        list(wrap(pipeline()))
        counts.append(open_files())
    return [after - before for before, after in pairwise(counts)]


dist.init_process_group("gloo")
if sys.argv[1] == "alone":
    faulthandler.dump_traceback_later(5, exit=True)  # after 5 s, print the stack of each thread and exit
    if dist.get_rank() == 0:
        list(gb.DataLoader(pipeline()))
    dist.barrier()
else:
    print_on_rank("the pipeline itself", [batch.seed_nodes.tolist() for batch in pipeline()])
    print_on_rank("in gb.DataLoader   ", [batch.seed_nodes.tolist() for batch in gb.DataLoader(pipeline())])
    print_on_rank("new files per pass, the pipeline itself", files_per_pass(iter, 4))
    print_on_rank("new files per pass, gb.DataLoader      ", files_per_pass(gb.DataLoader, 4))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 60, hard))  # allow 60 more files
    print_on_rank("passes over the pipeline itself", len(files_per_pass(iter, 60)))
    print_on_rank("passes over gb.DataLoader", len(files_per_pass(gb.DataLoader, 60)))  # not reached
