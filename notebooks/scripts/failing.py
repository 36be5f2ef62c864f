"""Run train_before.py with a fault. Usage: failing.py FAULT READ OPTIONS. Rank 1 triggers FAULT at feature read READ.

The functions below define kill, raise, wait and extra. With fill, server 1 loads its part into a nearly full /dev/shm.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from train_before import arguments, join_job, leave_job, run


def kill():
    """Kill this process without a message, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait():
    """Wait for a file that is never created."""
    while not os.path.exists("no-such-file"):
        time.sleep(0.1)


def extra():
    """Call a collective operation that the other ranks do not call."""
    dist.all_reduce(torch.zeros(3))


def fail():
    raise ValueError("row 17 of this table has no label")


class Faulty:
    """Read from a DistTensor, and trigger the fault on rank 1 at read number ``at``."""

    def __init__(self, tensor, fault, at):
        self.tensor, self.fault, self.at, self.reads, self.shape = tensor, fault, at, 0, tensor.shape

    def __getitem__(self, ids):
        self.reads += 1
        if dist.get_rank() == 1 and self.reads == self.at:
            self.fault()
        return self.tensor[ids]


def fill():
    """Fill /dev/shm except for 0.5 MB, as a file of another user would. Exit if /dev/shm is larger than 100 MB."""
    free = os.statvfs("/dev/shm")
    if free.f_blocks * free.f_frsize > 100_000_000:
        sys.exit("fill is for emulated machines: machines start 2 --shm 60MB")
    with open("/dev/shm/not-ours", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 500_000)


if __name__ == "__main__":
    faults = {"kill": kill, "wait": wait, "extra": extra, "raise": fail}
    if sys.argv[1] not in (*faults, "fill"):
        sys.exit(f"failing.py: no fault is called {sys.argv[1]}; there are {', '.join(faults)} and fill")
    if sys.argv[1] == "fill" and os.environ.get("DGL_ROLE") == "server" and os.environ["DGL_SERVER_ID"] == "1":
        fill()
    args = arguments().parse_args(sys.argv[3:])
    g = join_job(args)
    if sys.argv[1] in faults:
        g.ndata["feat"] = Faulty(g.ndata["feat"], faults[sys.argv[1]], int(sys.argv[2]))
    run(g, args)
    leave_job()
