"""An earlier version of train.py, whose ranks use Join (lessons 11, 13, 14 and 15). Programs import its functions."""

import json
import os
import time
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import node_split
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from job import arguments, join_job, leave_job
from sage import GraphSAGE
from seeds import seed_job


def split(g):
    """Return this rank's share of the training, validation and test nodes."""
    return [node_split(g.ndata[f"{name}_mask"], force_even=True) for name in ("train", "val", "test")]


def batches(g, ids, args, epoch):
    """Return a loader of input nodes, seed nodes and blocks for this rank's batches. Each epoch has a new order."""
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(args.seed * 1000 + epoch))
    sampler = dgl.dataloading.MultiLayerNeighborSampler([int(fanout) for fanout in args.fanouts.split(",")])
    return dgl.dataloading.DistNodeDataLoader(g, ids[order], sampler, batch_size=args.batch_size)


def load_subtensor(g, seeds, input_nodes):
    """Return features of the input nodes and labels of the seed nodes. The network carries remote rows."""
    return g.ndata["feat"][input_nodes], g.ndata["label"][seeds].long()


def train_epoch(model, optimizer, g, ids, args, epoch):
    """Train for an epoch and return the mean loss over the training nodes of all ranks."""
    shares, total = [0] * dist.get_world_size(), torch.zeros(1)
    dist.all_gather_object(shares, len(ids))
    with Join([model.train()]):  # a rank without further batches adds zeros to the all-reduces
        for step, (input_nodes, seeds, blocks) in enumerate(batches(g, ids, args, epoch)):
            of_all = sum(min(max(share - step * args.batch_size, 0), args.batch_size) for share in shares)
            x, y = load_subtensor(g, seeds, input_nodes)
            loss = F.cross_entropy(model(blocks, x), y, reduction="sum")
            optimizer.zero_grad()
            (loss * len(shares) / of_all).backward()  # DDP divides by the number of ranks
            optimizer.step()
            total += loss.detach()
    state = [optimizer.state_dict()]  # Join makes the weights equal but not Adam's state,
    dist.broadcast_object_list(state, src=shares.index(max(shares)))  # so copy it from a rank that made all steps
    optimizer.load_state_dict(state[0])
    dist.all_reduce(total)
    return total.item() / sum(shares)


@torch.no_grad()
def evaluate(model, g, ids, args):
    """Return the accuracy over the nodes of all ranks with sampled neighbors. Counts are summed before the division."""
    model.eval()
    counts = torch.tensor([0, len(ids)])  # correct, total
    for input_nodes, seeds, blocks in batches(g, ids, args, epoch=0):
        x, y = load_subtensor(g, seeds, input_nodes)
        counts[0] += (model(blocks, x).argmax(1) == y).sum()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(model, optimizer, epochs, args):
    """Write the checkpoint on rank 0 to a new file, then rename it. A complete checkpoint exists at all times."""
    if args.checkpoint and dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
        torch.save(state, f"{args.checkpoint}.new")
        os.replace(f"{args.checkpoint}.new", args.checkpoint)


def load(model, optimizer, args):
    """Load the checkpoint, if one exists, into the model and the optimizer. Return its completed epochs."""
    there = dist.get_rank() == 0 and args.checkpoint and Path(args.checkpoint).exists()
    state = [torch.load(args.checkpoint) if there else {"epochs": []}]
    dist.broadcast_object_list(state)  # only the machine of rank 0 has the file
    if state[0]["epochs"]:
        model.load_state_dict(state[0]["model"])
        optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["epochs"]


def run(g, args):
    """Train up to ``num_epochs`` in total, from the checkpoint if one exists. Return the model and its epochs."""
    train_ids, val_ids, _ = split(g)
    classes = g.ndata["label"][torch.cat([train_ids, val_ids])].max().long() + 1
    dist.all_reduce(classes, dist.ReduceOp.MAX)
    torch.manual_seed(args.seed)  # every rank begins with the same weights
    sizes = g.ndata["feat"].shape[1], args.hidden, int(classes), len(args.fanouts.split(","))
    model = DistributedDataParallel(GraphSAGE(*sizes, dropout=args.dropout))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    epochs = load(model.module, optimizer, args)
    for epoch in range(len(epochs), args.num_epochs):
        seed_job(args.seed * 1000 + epoch)  # makes an epoch independent of earlier epochs (lesson 10 has the limits)
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, g, train_ids, args, epoch)
        seconds, val = time.perf_counter() - start, evaluate(model.module, g, val_ids, args)
        epochs.append({"epoch": epoch, "loss": loss, "seconds": seconds, "val_accuracy": val})
        save(model.module, optimizer, epochs, args)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {val:.4f}  {seconds:.2f} s", flush=True)
    if args.out and dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps({"epochs": epochs}))
    return model.module, epochs


def main(args):
    run(join_job(args), args)
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args())
