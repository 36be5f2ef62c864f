"""The end of a rank: ``from leave import leave``."""

import os
import sys

import torch
import torch.distributed as dist


def leave():
    """End this process at once, when all ranks have come here.

    With torch 2.2, ``destroy_process_group`` can wait for a thread of gloo that waits for Python's lock, and a group
    that is never destroyed can end the process with "terminate called". NCCL, on GPUs, wants to be destroyed.
    """
    dist.barrier()
    backend = dist.get_backend()  # "gloo", "nccl", or both: "cpu:gloo,cuda:nccl"
    if "nccl" in backend:
        _gloo = dist.group.WORLD._get_backend(torch.device("cpu")) if "gloo" in backend else None  # outlives the group
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
