"""train.py with a fault. Usage: failing.py FAULT READ OPTIONS. Rank 1 commits it at its READ-th read of features.

kill, raise, wait, extra: see below. fill: the server of machine-1 loads its part when /dev/shm is nearly full.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from train import arguments, join_job, leave_job, run


def kill():
    """As the kernel does it when memory runs out: no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait():
    """For a file that nobody writes."""
    while not os.path.exists("no-such-file"):
        time.sleep(0.1)


def extra():
    """A collective call that the other ranks do not make."""
    dist.all_reduce(torch.zeros(3))


def fail():
    raise ValueError("row 17 of this table has no label")


class Faulty:
    """Reads like the DistTensor, and commits the fault at one of the reads."""

    def __init__(self, tensor, fault, at):
        self.tensor, self.fault, self.at, self.reads, self.shape = tensor, fault, at, 0, tensor.shape

    def __getitem__(self, ids):
        self.reads += 1
        if dist.get_rank() == 1 and self.reads == self.at:
            self.fault()
        return self.tensor[ids]


def fill():
    """Take all of /dev/shm but half a megabyte, as a file of somebody else's. Not that of a whole computer."""
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
