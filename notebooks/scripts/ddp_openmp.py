"""Sum two million ones on two threads, then fork. The same sum hangs in the forked child."""

import faulthandler
import multiprocessing
from pathlib import Path

import torch


def child(rank=0):
    faulthandler.dump_traceback_later(3)  # print the stack if the child still runs after three seconds
    Path("scripts/out", f"sum-{rank}").write_text(f"child {rank}: {torch.ones(2_000_000).sum().item()}")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    torch.set_num_threads(2)
    print("parent:", torch.ones(2_000_000).sum().item(), flush=True)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(5)
    if process.is_alive():
        print("the child has not returned within 5 s", flush=True)
        process.kill()
