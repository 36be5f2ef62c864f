"""A trainer for tests: ``faulty_trainer.py GRAPH FAULT RANK`` joins a job, then does FAULT on RANK.

With FAULT ``loop:N`` it draws and trains on N batches (a gradient's all-reduce in each), for faults from outside.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from dgl.dataloading import DistNodeDataLoader, MultiLayerNeighborSampler
from dgl.distributed import node_split
from torch.distributed.algorithms.join import Join

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


def uneven(session) -> None:
    """With Join, ranks with 6 and 2 batches end with the weights that one process computes."""
    rows = [torch.arange(60).split(10), torch.arange(60, 80).split(10)]
    feat = session.graph.ndata["feat"]

    def new_model() -> torch.nn.Linear:
        torch.manual_seed(0)
        return torch.nn.Linear(feat.shape[1], 1)

    model = torch.nn.parallel.DistributedDataParallel(new_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for ids in rows[session.rank]:
            optimizer.zero_grad()
            model(feat[ids]).square().mean().backward()
            optimizer.step()
    alone = new_model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for batches in itertools.zip_longest(*rows):
        optimizer.zero_grad()
        for ids in filter(torch.is_tensor, batches):
            (alone(feat[ids]).square().mean() / 2).backward()  # the mean over both ranks
        optimizer.step()
    pairs = zip(model.module.parameters(), alone.parameters(), strict=True)
    equal = all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    session.events.emit("compared", equal=equal, batches=len(rows[session.rank]))


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
        elif fault == "uneven":
            uneven(session)
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
                return  # leaves without the barrier that the others are in: waits in `leave`
            time.sleep(1000)
        elif fault == "skip":
            dist.all_reduce(torch.zeros(1))  # the one that the other rank skips
            dist.all_reduce(torch.zeros(1))
        else:
            dist.barrier()  # waits for the rank that never comes


if __name__ == "__main__":
    main(*sys.argv[1:])
