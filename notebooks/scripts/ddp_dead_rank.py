"""Rank 1 is killed, as the kernel kills when memory runs out. Rank 0 waits for it in a sum."""

import os
import signal

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
