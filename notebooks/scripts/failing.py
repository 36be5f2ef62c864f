"""Run train.py with a fault: failing.py --fault NAME --at READ [--limit SECONDS] OPTIONS (lesson 11).

Rank 1 triggers the fault before it reads the batch of step READ (1 is the first). ``fill`` concerns server 1. The
variable SEALED contains the packed source of a function ``fault(step)``, which all ranks call in every step.
"""

import base64
import faulthandler
import os
import signal
import sys
import time
import zlib

import torch
import torch.distributed as dist

from node_task import NodeTask
from train import main
from watchdog import Watchdog, guard


def kill():
    """Kill this process without a message, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_file():
    """Wait for a file that is never created."""
    while not os.path.exists("no-such-file"):
        time.sleep(0.1)


def call_once_more():
    """Call a collective operation that the other ranks do not call."""
    dist.all_reduce(torch.zeros(3))


def fail():
    raise ValueError("row 17 of this table has no label")


def fill():
    """Fill /dev/shm except for 0.5 MB, as a file of another user would. Exit if /dev/shm is larger than 100 MB."""
    free = os.statvfs("/dev/shm")
    if free.f_blocks * free.f_frsize > 100_000_000:
        sys.exit("fill is for emulated machines: machines start 2 --shm 60MB")
    with open("/dev/shm/not-ours", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 500_000)


FAULTS = {"kill": kill, "wait": wait_for_file, "extra": call_once_more, "raise": fail}


class FailingTask(NodeTask):
    """Classify nodes, with a fault. With --limit, a watchdog ends a rank without progress."""

    def __init__(self, g, args):
        super().__init__(g, args)
        self.step, self.sealed = 0, {}
        exec(zlib.decompress(base64.b64decode(os.environ["SEALED"])) if "SEALED" in os.environ else "", self.sealed)
        if args.limit:
            watchdog = Watchdog(args.limit)
            guard(self, watchdog)
            watchdog.start()

    def read(self, sample):
        self.step += 1
        if "fault" in self.sealed:
            self.sealed["fault"](self.step)
        if dist.get_rank() == 1 and self.step == self.args.at:
            FAULTS[self.args.fault]()
        return super().read(sample)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # this signal prints the Python stacks
    if "fill" in sys.argv and os.environ.get("DGL_ROLE") == "server" and os.environ["DGL_SERVER_ID"] == "1":
        fill()
    main(FailingTask, fault="", at=0, limit=0.0)
