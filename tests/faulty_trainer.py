"""A trainer for tests: ``faulty_trainer.py GRAPH FAULT RANK`` joins a job, then does FAULT on RANK."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tutorial_lib.loaders import BatchLoader
from tutorial_lib.session import join, serve_if_server


def main(graph_name: str, fault: str, rank: str) -> None:
    serve_if_server()
    with join(graph_name) as session:
        if fault == "count":
            seeds = session.split(torch.arange(session.graph.num_nodes()) < 196)
            counted = sum(len(batch.seeds) for batch in BatchLoader(session.graph, seeds, [5, 5], 10, shuffle=True))
            session.events.emit("counted", seeds=counted)
        elif session.rank == int(rank):
            Path("fault-at").write_text(str(time.time()))
            if fault == "raise":
                raise ValueError("a mistake in the training loop")
            if fault == "exit":
                sys.exit(3)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        else:
            dist.barrier()  # waits for the rank that never comes


if __name__ == "__main__":
    main(*sys.argv[1:])
