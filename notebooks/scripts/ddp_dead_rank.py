"""Kill rank 1 while rank 0 waits in an all-reduce. The kernel sends the same signal if memory runs out."""

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
