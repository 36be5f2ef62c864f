"""python scripts/ddp_memory.py fork|spawn prepared|plain RANKS...: memory of ranks that use one graph."""

import json
import sys
from pathlib import Path

import dgl
import psutil
import torch
import torch.multiprocessing as mp

from ddp_utils import prepare_mp


def rank_main(graph, all_there, answers):
    """Use the graph as a rank does; then look at the memory while all ranks are there."""
    torch.set_num_threads(1)
    graph.ndata["feat"].sum()  # reads every page of the features
    dgl.sampling.sample_neighbors(graph, torch.arange(100), 5)  # needs the format CSC
    all_there.wait()
    memory = psutil.Process().memory_full_info()
    answers.put((memory.pss, memory.uss))  # proportional: a page that n processes share counts 1/n; and own pages
    all_there.wait()


def new_graph():
    """100,000 nodes with 100 features, 2 million edges."""
    graph = dgl.graph((torch.randint(100_000, (2_000_000,)), torch.randint(100_000, (2_000_000,))), num_nodes=100_000)
    graph.ndata["feat"] = torch.ones(100_000, 100)
    return graph


def measure(graph, method, ranks):
    """MiB that the parent and its ranks use together, and MiB of a rank's own."""
    context = mp.get_context(method)
    all_there, answers = context.Barrier(ranks + 1), context.SimpleQueue()
    processes = [context.Process(target=rank_main, args=(graph, all_there, answers)) for _ in range(ranks)]
    for process in processes:
        process.start()
    all_there.wait()
    found = [answers.get() for _ in processes]
    parent = psutil.Process().memory_full_info().pss
    all_there.wait()
    for process in processes:
        process.join()
    together, own = (sum(values) for values in zip(*found, strict=True))
    return {"ranks": ranks, "together": (together + parent) / 2**20, "own": own / ranks / 2**20}


if __name__ == "__main__":
    torch.set_num_threads(1)
    method, state, *counts = sys.argv[1:]
    graph = new_graph()
    if state == "prepared":
        prepare_mp(graph)
    rows = [measure(graph, method, int(ranks)) for ranks in counts]
    out = Path(__file__).with_name("out")
    out.mkdir(exist_ok=True)
    (out / f"memory-{method}-{state}.json").write_text(json.dumps(rows))
