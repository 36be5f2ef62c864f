"""Classify nodes without features, with the options of train.py and three more. Embeddings replace the features."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import train_before as train
from rows import Rows, SparseSteps, share_state
from sage import GraphSAGE
from seeds import seed_job


def train_epoch(model, optimizer, rows, g, ids, args, epoch):
    """Train for an epoch and return the mean loss over the training nodes of all ranks."""
    shares, total = [0] * dist.get_world_size(), torch.zeros(1)
    dist.all_gather_object(shares, len(ids))
    with Join([model.train(), SparseSteps(model, rows.optimizer)]):
        for step, (input_nodes, seeds, blocks) in enumerate(train.batches(g, ids, args, epoch)):
            of_all = sum(min(max(share - step * args.batch_size, 0), args.batch_size) for share in shares)
            x, y = rows.table(input_nodes), g.ndata["label"][seeds].long()
            x = x * F.dropout(torch.ones(len(x), 1), args.dropout)  # dropout of whole rows
            loss = F.cross_entropy(model(blocks, x), y, reduction="sum")
            optimizer.zero_grad()
            rows.optimizer.zero_grad()
            (loss * len(shares) / of_all).backward()  # DDP divides by the number of ranks
            optimizer.step()
            rows.optimizer.step()
            total += loss.detach()
    share_state(optimizer, shares.index(max(shares)))  # from a rank that has made every step
    dist.all_reduce(total)
    return total.item() / sum(shares)


def run(g, args):
    train_ids, val_ids, test_ids = train.split(g)
    rows, hops = Rows(g, args), len(args.fanouts.split(","))
    classes = int(g.ndata["label"][torch.arange(g.num_nodes())].max()) + 1
    g.ndata["feat"] = rows.table.weight  # train.evaluate then reads the embeddings as features
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(GraphSAGE(args.width, args.hidden, classes, hops, args.dropout))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    epochs = train.load(model.module, optimizer, args)
    rows.load(args, len(epochs))
    for epoch in range(len(epochs), args.num_epochs):
        seed_job(args.seed * 1000 + epoch)
        loss = train_epoch(model, optimizer, rows, g, train_ids, args, epoch)
        epochs.append({"epoch": epoch, "loss": loss, "val_accuracy": train.evaluate(model.module, g, val_ids, args)})
        rows.save(args, len(epochs))
        train.save(model.module, optimizer, epochs, args)  # last, because its number of epochs selects the row files
        rows.forget(args, len(epochs))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {epochs[-1]['val_accuracy']:.4f}", flush=True)
    large = argparse.Namespace(**{**vars(args), "batch_size": 2048})  # large batches for many test nodes
    test = train.evaluate(model.module, g, test_ids, large) if args.out else None  # only used in args.out
    return {"epochs": epochs, "test_accuracy": test}


def main():
    parser = train.arguments()
    for name, default in {"width": 64, "rows_lr": 0.03, "repeats": 1}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args, found = parser.parse_args(), []
    g = train.join_job(args)
    print("process", os.getpid(), flush=True)
    for _ in range(args.repeats):
        found.append(run(g, args))
        args.seed, args.checkpoint = args.seed + 1, ""  # only the first seed has checkpoints
    if args.out and dist.get_rank() == 0:
        torch.save(found, args.out)
    train.leave_job()


if __name__ == "__main__":
    main()
