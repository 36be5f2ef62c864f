"""Measure the memory of ranks that use one graph: python -m support.lessons.rank_memory fork|spawn. Prints JSON."""

import json
import sys
from typing import Any

import dgl
import psutil
import torch
import torch.multiprocessing as mp


def rank_main(graph: dgl.DGLGraph | None, ready: Any, done: Any) -> None:
    """Use the graph as a rank does, then keep running until the parent has measured the memory."""
    torch.set_num_threads(1)
    if graph is not None:
        graph.ndata["feat"].sum()  # reads every page of the features
        dgl.sampling.sample_neighbors(graph, torch.arange(100), 5)  # requires the CSC format
    ready.release()
    done.wait(200)


def new_graph() -> dgl.DGLGraph:
    """Return a graph of 100,000 nodes with 100 features and 2 million edges."""
    graph = dgl.graph((torch.randint(100_000, (2_000_000,)), torch.randint(100_000, (2_000_000,))), num_nodes=100_000)
    graph.ndata["feat"] = torch.ones(100_000, 100)
    return graph


def measure(graph: dgl.DGLGraph | None, method: str, counts: list[int]) -> dict[int, dict[str, float]]:
    """Return, for each number of ranks, the MB of the parent and all ranks, and the largest private MB of a rank."""
    context: Any = mp.get_context(method)
    ready = context.Semaphore(0)
    done = context.Event()
    ranks = []
    rows = {}
    for count in counts:
        new = [context.Process(target=rank_main, args=(graph, ready, done)) for _ in range(count - len(ranks))]
        for rank in new:  # earlier ranks keep running
            rank.start()
        for _ in new:
            assert ready.acquire(timeout=60), "a rank is not ready after a minute"
        ranks += new
        memories = [psutil.Process(rank.pid).memory_full_info() for rank in ranks]
        together = psutil.Process().memory_full_info().pss + sum(memory.pss for memory in memories)
        rows[count] = {"together": together / 1e6, "own": max(memory.uss for memory in memories) / 1e6}
    done.set()
    for rank in ranks:
        rank.join()
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = {"no graph": measure(None, sys.argv[1], [2]), "plain": measure(new_graph(), sys.argv[1], [2])}
    graph = new_graph()  # new, because a graph that was sent once is not sent again with more formats
    graph.create_formats_()
    result["prepared"] = measure(graph, sys.argv[1], [1, 2, 4])
    print(json.dumps(result))
