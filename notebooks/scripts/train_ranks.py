"""Train node classification on the ranks of one machine with the pieces of lessons 01, 06 and 08.

torchrun --nproc_per_node 2 train_ranks.py FOLDER --loader graphbolt
"""

import argparse
import os
import time
from types import SimpleNamespace

import dgl
import dgl.graphbolt as gb
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphbolt_loader import append_degrees, make_source, open_dataset, rank_pipeline, train_epoch
from leave import leave
from ranks import rank_batches, save_best, weighted_reduce
from sage import GraphSAGE


def join_ranks():
    """Join the process group, with NCCL if each rank has a GPU and GraphBolt supports CUDA. Return the device."""
    on_gpus = hasattr(torch.ops.graphbolt, "set_max_uva_threads")
    on_gpus = on_gpus and torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    device = torch.device("cuda", dist.get_rank()) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    return device


def dgl_batches(dataset, graph, itemset, rows, fanouts, device):
    """Yield the same batches with DGL's sampler, as in lesson 06, in the form of GraphBolt's mini-batches."""
    (ids, labels), sampler = itemset[:], dgl.dataloading.NeighborSampler(fanouts)
    for part in rows:
        inputs, _, blocks = sampler.sample_blocks(graph, ids[part].long())
        features = dataset.feature.read("node", None, "feat", inputs).to(device)
        blocks = [block.to(device) for block in blocks]
        yield SimpleNamespace(blocks=blocks, node_features={"feat": features}, labels=labels[part].to(device))


@torch.no_grad()
def evaluate(model, batches):
    """Return the share of correct predictions in the batches of all ranks. Neighbors are sampled."""
    right = count = 0
    for batch in batches:
        scores = model.eval()(batch.blocks, batch.node_features["feat"])
        right += (scores.argmax(1) == batch.labels).sum().item()
        count += len(batch.labels)
    return weighted_reduce(right, count)


def exact_accuracy(model, graph, features, itemset):
    """Return the accuracy with all neighbors of all nodes."""
    ids, labels = itemset[:]
    scores = model.inference(graph, features)
    return (scores[ids.long()].argmax(1) == labels).double().mean().item()


def main(args):
    device, rank, world_size = join_ranks(), dist.get_rank(), dist.get_world_size()
    dataset = open_dataset(args.folder, device)
    task, stage = dataset.tasks[0], append_degrees(dataset.graph) if args.degrees else None
    csc = dataset.graph.csc_indptr.long(), dataset.graph.indices.long(), torch.tensor([], dtype=torch.int64)
    graph = dgl.graph(("csc", csc))

    def load(itemset, rows):
        if args.loader == "graphbolt":
            return rank_pipeline(make_source(itemset, rows), dataset, args.fanouts, device, stage)
        return dgl_batches(dataset, graph, itemset, rows, args.fanouts, device)

    for seed in (torch.manual_seed, dgl.seed, gb.seed):  # GraphBolt has a separate random generator
        seed(rank)
    width = dataset.feature.size("node", None, "feat")[0] + args.degrees
    model = GraphSAGE(width, args.hidden, task.metadata["num_classes"], len(args.fanouts), args.dropout)
    model, best = DistributedDataParallel(model.to(device)), -1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        pairs = rank_batches(torch.arange(len(task.train_set)), args.batch_size, epoch)
        start = time.perf_counter()
        batches = load(task.train_set, [rows for rows, _ in pairs])
        loss = weighted_reduce(*train_epoch(model, optimizer, batches, [size for _, size in pairs]))
        seconds = time.perf_counter() - start  # weighted_reduce has waited for the GPU
        rows = torch.arange(len(task.validation_set))[rank::world_size].split(1024)
        accuracy = evaluate(model.module, load(task.validation_set, rows))
        best = save_best(model, accuracy, best, args.out)
        if rank == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {accuracy:.4f}  {seconds:.2f} s", flush=True)
    if rank == 0:
        every_row = {"feat": dataset.feature.read("node", None, "feat")}
        batch = gb.MiniBatch(input_nodes=graph.nodes(), node_features=every_row)
        features = (stage(batch) if stage else batch).node_features["feat"]
        model.module.cpu().load_state_dict(torch.load(args.out, map_location="cpu"))
        accuracy = exact_accuracy(model.module, graph, features, task.test_set)
        print(f"best model: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--loader", choices=("dgl", "graphbolt"), default="dgl")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--degrees", action="store_true", help="append the degrees of the nodes to the features")
    options = {"out": "best.pt", "epochs": 5, "batch_size": 256, "hidden": 64, "dropout": 0.5}
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    if args.degrees and args.loader == "dgl":
        parser.error("--degrees is a stage of GraphBolt's pipeline. Add --loader graphbolt.")
    main(args)
    leave()
