"""Time four loaders in turn, with the same ranks and batches: torchrun ... bolt_loaders.py FOLDER OUT.json

Each rank uses one thread. The file contains the milliseconds per batch of each loader, for small and for large batches.
For the loaders of GraphBolt, it also contains the milliseconds of a pass without any batch.
"""

import json
import sys
import time
from pathlib import Path

import dgl
import dgl.graphbolt as gb
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphbolt_loader import make_source, open_dataset, rank_pipeline, train_epoch
from leave import leave
from ranks import rank_batches
from sage import GraphSAGE
from train_ranks import dgl_batches

ROUNDS = 6  # the first round is a warm-up
SETTINGS = {"128 seed nodes, fan-outs 5, 10": (128, [5, 10]), "512 seed nodes, fan-outs 10, 10, 10": (512, [10] * 3)}
LOADERS = ("DGL's sampler", "your pipeline", "pipeline and thread", "gb.DataLoader")


def batches_of(loader, dataset, graph, rows, fanouts):
    """Return the batches of this rank from one of the loaders. All loaders get the same seed nodes."""
    items = dataset.tasks[0].train_set
    if loader == "DGL's sampler":
        return dgl_batches(dataset, graph, items, rows, fanouts, "cpu")
    source = make_source(items, rows)
    if loader == "pipeline and thread":
        source = source.prefetch(2)  # gb.DataLoader inserts the same stage before copy_to
    pipeline = rank_pipeline(source, dataset, fanouts)
    return gb.DataLoader(pipeline, overlap_feature_fetch=False) if loader == "gb.DataLoader" else pipeline


def milliseconds(work, count=1):
    """Return the time of a call, divided by the number of batches. The ranks start together."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / count * 1e3


def main(folder, out):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    dataset = open_dataset(folder)
    csc = dataset.graph.csc_indptr.long(), dataset.graph.indices.long(), torch.tensor([], dtype=torch.int64)
    graph, width = dgl.graph(("csc", csc)), dataset.feature.size("node", None, "feat")[0]
    found = {}
    for name, (batch_size, fanouts) in SETTINGS.items():
        model = DistributedDataParallel(GraphSAGE(width, 64, dataset.tasks[0].metadata["num_classes"], len(fanouts)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        found[name] = {loader: {"batches alone": [], "training": [], "no batch": []} for loader in LOADERS}
        for number in range(ROUNDS):
            pairs = rank_batches(torch.arange(len(dataset.tasks[0].train_set)), batch_size, number)
            rows, sizes = [part for part, _ in pairs], [size for _, size in pairs]
            for loader in LOADERS[number % 4 :] + LOADERS[: number % 4]:  # each round starts with another loader
                alone, train, none = (batches_of(loader, dataset, graph, r, fanouts) for r in (rows, rows, []))
                row = found[name][loader]
                for key, value in (
                    ("batches alone", milliseconds(lambda: [batch.blocks for batch in alone], len(rows))),  # noqa: B023
                    ("training", milliseconds(lambda: train_epoch(model, optimizer, train, sizes), len(rows))),  # noqa: B023
                    ("no batch", milliseconds(lambda: list(none))),  # noqa: B023
                ):
                    row[key] += [value] if number else []
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))


main(*sys.argv[1:])
leave()
