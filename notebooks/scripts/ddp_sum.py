"""Sum the numbers of two ranks: python ddp_sum.py NUMBER, with RANK and MASTER_PORT. The number 0 kills rank 1."""

import os
import sys

import torch
import torch.distributed as dist


def add(rank, world_size, port, threads, number):
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    dist.barrier()
    if number == 0 and rank == 1:
        os.kill(os.getpid(), 9)  # the kernel sends SIGKILL, too, when memory runs out
    total = torch.tensor(number)
    dist.all_reduce(total)
    print(f"rank {rank} added {number:4} and got {total.item()}\n", end="", flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    add(int(os.environ["RANK"]), 2, int(os.environ["MASTER_PORT"]), 1, int(sys.argv[1]))
