"""Start two processes and wait for both, as the tutorial does. One fails at once, the other works for a second."""

import multiprocessing
import sys
import time


def work(rank):
    if rank == 1:
        sys.exit(3)
    time.sleep(1)


if __name__ == "__main__":
    processes = [multiprocessing.Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("all ranks have ended")
