"""Measure memory of ranks that use one graph, before and after prepare_mp: python scripts/ddp_memory.py fork|spawn."""

import json
import sys
from pathlib import Path

import dgl
import psutil
import torch
import torch.multiprocessing as mp

from ddp_utils import prepare_mp


def rank_main(graph, ready, done):
    """Use the graph as a rank does, then keep running until the parent has measured the memory."""
    torch.set_num_threads(1)
    graph.ndata["feat"].sum()  # reads every page of the features
    dgl.sampling.sample_neighbors(graph, torch.arange(100), 5)  # requires the CSC format
    ready.release()
    done.wait(200)


def new_graph():
    """Return a graph of 100,000 nodes with 100 features and 2 million edges."""
    graph = dgl.graph((torch.randint(100_000, (2_000_000,)), torch.randint(100_000, (2_000_000,))), num_nodes=100_000)
    graph.ndata["feat"] = torch.ones(100_000, 100)
    return graph


def measure(graph, method, counts):
    """Return, for each number of ranks, the MiB of the parent and all ranks and the private MiB of each rank."""
    context = mp.get_context(method)
    ready, done, ranks, rows = context.Semaphore(0), context.Event(), [], []
    for count in counts:
        new = [context.Process(target=rank_main, args=(graph, ready, done)) for _ in range(count - len(ranks))]
        for rank in new:  # earlier ranks keep running
            rank.start()
        for _ in new:
            assert ready.acquire(timeout=60), "a rank is not ready after a minute"
        ranks += new
        found = [psutil.Process(rank.pid).memory_full_info() for rank in ranks]
        parent = psutil.Process().memory_full_info().pss
        together = parent + sum(memory.pss for memory in found)  # PSS counts a page of n processes as 1/n for each
        own = [memory.uss / 2**20 for memory in found]  # USS counts private pages
        rows.append({"ranks": count, "together": together / 2**20, "own": own})
    done.set()
    for rank in ranks:
        rank.join()
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    method, rows = sys.argv[1], {}
    for state, counts in {"plain": [2], "prepared": [1, 2, 4, 8]}.items():
        graph = new_graph()  # new, because a graph that was sent once is not sent again with more formats
        if state == "prepared":
            prepare_mp(graph)
        rows[state] = measure(graph, method, counts)
    Path(__file__).with_name("out").joinpath(f"memory-{method}.json").write_text(json.dumps(rows))
