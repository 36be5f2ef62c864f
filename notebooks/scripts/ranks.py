"""Train GraphSAGE on the ranks of one machine (lesson 06): torchrun --nproc_per_node 2 ranks.py --graph FILE."""

import argparse
import functools
import os
import threading
import time

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def rank_batches(ids, batch_size, epoch):
    """Return one pair for each step of the epoch: this rank's seed nodes (int64) and the size of the whole batch.

    Shuffle ``ids`` in the same order on all ranks and in a different order in each epoch, and cut them into batches of
    ``batch_size`` (the last one has the remaining nodes). Each rank takes ``batch[rank::world_size]`` of every batch.
    This part of the last batch can be empty. Create a ``torch.Generator``, because dropout uses the global one.
    """
    generator = torch.Generator().manual_seed(epoch)
    order = ids[torch.randperm(len(ids), generator=generator)]
    pairs = []
    for batch in order.split(batch_size):
        pairs.append((batch[dist.get_rank() :: dist.get_world_size()], len(batch)))
    return pairs


def weighted_reduce(total, weight):
    """Return the sum of the totals of all ranks divided by the sum of their weights, a float, on every rank.

    ``total`` is the sum of a value over the nodes of this rank, and ``weight`` is their number, which can be 0. Add in
    float64, because float32 cannot represent odd integers above 16.8 million.
    """
    sums = torch.tensor([total, weight], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def scores_and_labels(model, graph, seeds, sampler):
    """Return scores (B, classes) and labels (B) of seed nodes, on the device of the model."""
    device = next(model.parameters()).device
    inputs, _, blocks = sampler.sample_blocks(graph, seeds)
    scores = model([block.to(device) for block in blocks], graph.ndata["feat"][inputs].to(device))
    return scores, graph.ndata["label"][seeds].to(device)


def train_epoch(model, optimizer, graph, batches, sampler):
    """Train one epoch and return the mean cross-entropy over the seed nodes of all ranks, a float.

    Each step uses the gradient of the mean loss over the seed nodes of **all** ranks. DDP adds the gradients of the
    ranks and divides by their number. Therefore multiply the **summed** loss of this rank by
    ``world_size / size of the whole batch`` before ``backward()``. Take every step, even if this rank has no seed nodes
    in it, because the other ranks wait. ``scores_and_labels`` computes the scores of a batch.

    Args:
        model: GraphSAGE in DistributedDataParallel.
        batches: list from ``rank_batches``.
    """
    model.train()
    total = count = 0
    for seeds, seeds_of_all in batches:
        scores, labels = scores_and_labels(model, graph, seeds, sampler)
        loss = F.cross_entropy(scores, labels, reduction="sum")
        optimizer.zero_grad()
        (loss * dist.get_world_size() / seeds_of_all).backward()
        optimizer.step()
        total += loss.item()
        count += len(seeds)
    return weighted_reduce(total, count)


@torch.no_grad()
def evaluate(model, graph, ids, sampler, batch_size=1024):
    """Return the accuracy on the nodes ``ids``, a float, on every rank. Each rank predicts a part of the nodes.

    The model is the one inside DDP, so ranks may have different numbers of batches. Use its evaluation mode and batches
    of at most ``batch_size`` nodes of this rank. With fewer nodes than ranks, some parts are empty.
    """
    model.eval()
    mine = ids[dist.get_rank() :: dist.get_world_size()]
    right = 0
    for seeds in mine.split(batch_size):
        scores, labels = scores_and_labels(model, graph, seeds, sampler)
        right += (scores.argmax(1) == labels).sum().item()
    return weighted_reduce(right, len(mine))


def save_best(model, accuracy, best, path):
    """Save the weights if ``accuracy`` is higher than ``best``, and return the higher of the two.

    Rank 0 writes the weights of ``model.module`` to ``f"{path}.new"`` and renames this file with ``os.replace``, so
    ``path`` never contains half a file. No rank returns before the rename. All ranks pass the same numbers.
    """
    if accuracy > best:
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), f"{path}.new")
            os.replace(f"{path}.new", path)
        dist.barrier()
    return max(accuracy, best)


def fix_openmp(function):
    """Return a function that behaves like a direct call of ``function``, but runs in a new ``threading.Thread``.

    It passes on all arguments, the returned value, and all exceptions, even ``SystemExit``, a ``BaseException``.
    """

    @functools.wraps(function)
    def in_a_thread(*args, **options):
        found = {}

        def run():
            try:
                found["value"] = function(*args, **options)
            except BaseException as error:
                found["error"] = error

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if "error" in found:
            raise found["error"]
        return found["value"]

    return in_a_thread


def main(args):
    """Train, save the best model, and return the loss, the seconds and the validation accuracy of each epoch."""
    from sage import GraphSAGE

    on_gpus = "+cu" in dgl.__version__ and torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    torch.manual_seed(rank := dist.get_rank())  # other dropout and neighbors on each rank. DDP copies rank 0's weights
    dgl.seed(rank)
    graph = dgl.load_graphs(args.graph)[0][0]
    train_ids, val_ids = (graph.ndata[mask].nonzero().flatten() for mask in ("train_mask", "val_mask"))
    model = GraphSAGE(graph.ndata["feat"].shape[1], args.hidden, int(graph.ndata["label"].max()) + 1, 2, args.dropout)
    model = DistributedDataParallel(model.to(torch.device("cuda", rank) if on_gpus else "cpu"))
    sampler = dgl.dataloading.MultiLayerNeighborSampler([args.fanout] * 2)
    optimizer, best, epochs = torch.optim.Adam(model.parameters(), lr=0.01), -1.0, []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, graph, rank_batches(train_ids, args.batch_size, epoch), sampler)
        seconds, accuracy = time.perf_counter() - start, evaluate(model.module, graph, val_ids, sampler)
        best = save_best(model, accuracy, best, args.out)
        epochs.append({"loss": loss, "seconds": seconds, "accuracy": accuracy})
        if rank == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {accuracy:.4f}  {seconds:.2f} s", flush=True)
    return epochs


OPTIONS = {"graph": "", "out": "best.pt", "epochs": 5, "batch_size": 256, "fanout": 10, "hidden": 64, "dropout": 0.5}

if __name__ == "__main__":
    from leave import leave

    parser = argparse.ArgumentParser()
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    main(parser.parse_args())
    leave()
