"""Time three loaders in turn, with the same ranks and batches: torchrun ... bolt_loaders.py FOLDER OUT.json

Each rank uses one thread. The file contains the milliseconds per batch of each loader, for small and for large batches.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import dgl
import dgl.graphbolt as gb
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphbolt_loader import make_source, open_dataset, rank_pipeline, train_epoch
from leave import leave
from ranks import rank_batches
from sage import GraphSAGE

ROUNDS = 6  # the first round is a warm-up
SETTINGS = {"128 seed nodes, fan-outs 5, 10": (128, [5, 10]), "512 seed nodes, fan-outs 10, 10, 10": (512, [10] * 3)}
LOADERS = ("dgl.dataloading", "GraphBolt's pipeline", "gb.DataLoader")


def batches_of(loader, dataset, graph, rows, fanouts):
    """Yield the batches of this rank from one of the loaders. All loaders get the same seed nodes."""
    items = dataset.tasks[0].train_set
    if loader != "dgl.dataloading":
        pipeline = rank_pipeline(make_source(items, rows), dataset, fanouts)
        yield from pipeline if loader == LOADERS[1] else gb.DataLoader(pipeline, overlap_feature_fetch=False)
        return
    ids, labels, start = items[:][0][torch.cat(rows)].long(), items[:][1][torch.cat(rows)], 0
    sampler = dgl.dataloading.NeighborSampler(fanouts)
    for inputs, seeds, blocks in dgl.dataloading.DataLoader(graph, ids, sampler, batch_size=len(rows[0])):
        features = dataset.feature.read("node", None, "feat", inputs)
        yield SimpleNamespace(
            blocks=blocks, node_features={"feat": features}, labels=labels[start : start + len(seeds)]
        )
        start += len(seeds)


def milliseconds(work, count):
    """Return the time of a call, divided by the number of batches. The ranks start together."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / count * 1e3


def main(folder, out):
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    dataset = open_dataset(folder)
    csc = dataset.graph.csc_indptr.long(), dataset.graph.indices.long(), torch.tensor([], dtype=torch.int64)
    graph, width = dgl.graph(("csc", csc)), dataset.feature.size("node", None, "feat")[0]
    found = {}
    for name, (batch_size, fanouts) in SETTINGS.items():
        model = DistributedDataParallel(GraphSAGE(width, 64, dataset.tasks[0].metadata["num_classes"], len(fanouts)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        found[name] = {loader: {"batches alone": [], "training": []} for loader in LOADERS}
        for number in range(ROUNDS):
            pairs = rank_batches(torch.arange(len(dataset.tasks[0].train_set)), batch_size, number)
            rows, sizes = [part for part, _ in pairs], [size for _, size in pairs]
            for loader in LOADERS[number % 3 :] + LOADERS[: number % 3]:  # each round starts with another loader
                batches = [batches_of(loader, dataset, graph, rows, fanouts) for _ in range(2)]
                alone = milliseconds(lambda: [batch.blocks for batch in batches[0]], len(rows))  # noqa: B023
                trained = milliseconds(lambda: train_epoch(model, optimizer, batches[1], sizes), len(rows))  # noqa: B023
                for key, value in (("batches alone", alone), ("training", trained)):
                    found[name][loader][key] += [value] if number else []
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))


main(*sys.argv[1:])
leave()
