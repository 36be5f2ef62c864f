"""Sum two million ones on two threads, then fork. The same sum hangs in the forked child."""

import faulthandler
import multiprocessing

import torch


def parallel_sum():
    return torch.ones(2_000_000).sum().item()


def child():
    faulthandler.dump_traceback_later(3)  # print the stack if the child still runs after three seconds
    print("child:", parallel_sum(), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    print("parent:", parallel_sum(), flush=True)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(5)
    if process.is_alive():
        print("the child has not returned within 5 s", flush=True)
        process.kill()
