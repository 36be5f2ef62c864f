"""The end of a rank, when gloo carries its messages: ``from leave import leave``."""

import os
import sys

import torch.distributed as dist


def leave():
    """End this process at once, when all ranks have come here.

    With torch 2.2, ``destroy_process_group`` can wait for a thread of gloo that waits for Python's lock, and a group
    that is never destroyed can end the process with "terminate called". With NCCL, on GPUs, call
    ``destroy_process_group``.
    """
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
