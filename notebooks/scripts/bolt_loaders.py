"""Time three loaders in turn, in the same ranks: torchrun --nproc_per_node 2 scripts/bolt_loaders.py FOLDER OUT.json"""

import json
import os
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import dgl
import numpy as np
import torch
import torch.distributed as dist

from bolt_loader import create_dataloader, evaluate, item_sampler, items_per_step, reshuffled, weighted_reduce
from bolt_rank import make_model, one_epoch, open_dataset, start
from leave import leave

ROUNDS = 7  # the first round is a warm-up
ARGS = Namespace(batch_size=64, fanouts=[5, 10], hidden=64, dropout=0.5, drop=False)
KINDS = ("dgl.dataloading", "gb.DataLoader", "GraphBolt's pipeline alone")


def batches_of(kind, dataset, graph, items, device):
    """Yield this rank's batches from one of the loaders. All loaders get the same items."""
    if kind != "dgl.dataloading":
        ARGS.no_loader = kind != "gb.DataLoader"
        yield from create_dataloader(dataset, items, ARGS, device)
        return
    ids = torch.cat([batch.seed_nodes for batch in item_sampler(items, ARGS)]).long()
    sampler = dgl.dataloading.NeighborSampler(ARGS.fanouts)
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity")
    for inputs, seeds, blocks in dgl.dataloading.DataLoader(graph, ids, sampler, batch_size=ARGS.batch_size):
        features, labels = {"feat": graph.ndata["feat"][inputs]}, graph.ndata["label"][seeds]
        yield SimpleNamespace(blocks=blocks, node_features=features, labels=labels, seed_nodes=seeds)


def seconds_of(work, *arguments):
    dist.barrier()
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def main(folder, out):
    rank = int(os.environ["RANK"])
    device = start(rank, int(os.environ["WORLD_SIZE"]), "env://")
    dataset = open_dataset(folder, device)
    task = dataset.tasks[0]
    graph = dgl.graph(tuple(torch.from_numpy(np.load(f"{folder}/edges.npy"))))
    graph.create_formats_()
    graph.ndata["feat"] = dataset.feature.read("node", None, "feat")
    graph.ndata["label"] = torch.zeros(graph.num_nodes(), dtype=torch.int64)
    for ids, labels in (task.train_set[:], task.validation_set[:]):
        graph.ndata["label"][ids.long()] = labels
    models = {kind: make_model(rank, dataset, ARGS, device) for kind in KINDS}
    optimizers = {kind: torch.optim.Adam(models[kind].parameters(), lr=0.01) for kind in KINDS}
    found = {kind: {"epoch": [], "batches alone": []} for kind in KINDS}
    for number in range(ROUNDS):
        items = reshuffled(task.train_set, number)
        steps = items_per_step(items, ARGS, device)
        for kind in KINDS[number % 3 :] + KINDS[: number % 3]:  # each round starts with another loader
            of_kind = (kind, dataset, graph, items, device)
            draw = seconds_of(lambda batches: [batch.blocks for batch in batches], batches_of(*of_kind))
            found[kind]["batches alone"].append(draw)
            work = (one_epoch, rank, models[kind], optimizers[kind], batches_of(*of_kind), steps, device)
            found[kind]["epoch"].append(seconds_of(*work))
    for kind, model in models.items():
        batches = batches_of(kind, dataset, graph, task.validation_set, device)
        accuracy, count = evaluate(model.module, batches, 47, device)
        found[kind]["accuracy"] = weighted_reduce(accuracy * count, count)
    if rank == 0:
        Path(out).write_text(json.dumps(found))


main(*sys.argv[1:])
leave()
