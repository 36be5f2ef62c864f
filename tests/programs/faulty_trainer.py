"""A trainer for tests: ``faulty_trainer.py GRAPH FAULT RANK`` joins a job, then does FAULT on RANK.

``loop:N`` samples N batches and calls all_reduce after each, until a test injects a fault from outside.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from dgl.dataloading import DistNodeDataLoader, MultiLayerNeighborSampler
from dgl.distributed import node_split

from tutorial_lib.sampling.loader import BatchLoader
from tutorial_lib.trainer.session import open_session, serve_if_server


def share_of_first(graph, count: int) -> torch.Tensor:
    mask = torch.arange(graph.num_nodes()) < count
    return node_split(mask, graph.get_partition_book(), force_even=True).long()


def loop(session, steps: int) -> None:
    """Train on sampled batches with remote features and a collective in every step."""
    seeds = share_of_first(session.graph, 2000)
    step = 0
    while step < steps:
        for _step, batch in BatchLoader(session.graph, seeds, [5, 5], 50, shuffle=True).batches(0):
            total = session.graph.ndata["feat"][batch.input_nodes].sum()
            dist.all_reduce(total)
            session.events.emit("beat", step=step)
            time.sleep(0.02)
            step += 1
            if step == steps:
                return


class FailingSampler(MultiLayerNeighborSampler):
    """Fails in the sampler process."""

    def sample_blocks(self, *_arguments, **_options):
        Path("fault-at").write_text(str(time.time()))
        raise ValueError("a mistake in the sampler")


def exhaust_memory() -> None:
    """Use more memory than the 400 MB of the control group, so that the kernel kills this process."""
    while not Path("go").exists():
        time.sleep(0.05)
    Path("fault-at").write_text(str(time.time()))
    hoard = []
    while True:
        hoard.append(torch.ones(10_000_000))


def main(graph_name: str, fault: str, rank: str) -> None:
    serve_if_server()
    with open_session(graph_name) as session:
        if fault == "count":
            seeds = share_of_first(session.graph, 196)
            loader = BatchLoader(session.graph, seeds, [5, 5], 10, shuffle=True)
            counted = sum(len(batch.seeds) for _step, batch in loader.batches(0))
            session.events.emit("counted", seeds=counted)
        elif fault == "sampler":  # all samplers together open the graph
            sampler = FailingSampler([5]) if session.rank == int(rank) else MultiLayerNeighborSampler([5])
            for _ in DistNodeDataLoader(session.graph, torch.arange(50), sampler, batch_size=10):
                pass
            dist.barrier()
        elif fault.startswith("loop:"):
            loop(session, int(fault.split(":")[1]))
        elif session.rank == int(rank):
            Path("fault-at").write_text(str(time.time()))
            if fault == "raise":
                raise ValueError("a mistake in the training loop")
            if fault == "exit":
                sys.exit(3)
            if fault.startswith("os._exit"):
                os._exit(3 if fault == "os._exit" else 0)
            if fault == "memory":
                exhaust_memory()
            if fault == "skip":
                return  # skips the barrier of the other ranks, and waits when it leaves the session
            time.sleep(1000)
        elif fault == "skip":
            dist.all_reduce(torch.zeros(1))  # the other rank skips this call
            dist.all_reduce(torch.zeros(1))
        else:
            dist.barrier()  # the failed rank never enters it


if __name__ == "__main__":
    main(*sys.argv[1:])
