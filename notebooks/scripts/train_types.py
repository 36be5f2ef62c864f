"""Train an R-GCN on several node types. Types without features have learnable embeddings (lesson 15)."""

import json
import time
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import node_split
from torch.nn.parallel import DistributedDataParallel

from rgcn import RGCN
from seeds import seed_job
from train import arguments, join_job, leave_job
from typed import Rows, inference, make_stores


def split(g, target):
    """Return this rank's share of the training, validation and test nodes."""
    book, data = g.get_partition_book(), g.nodes[target].data
    return [node_split(data[f"{m}_mask"], book, ntype=target, force_even=True) for m in ("train", "val", "test")]


def make_sampler(g, fanouts):
    """Return a sampler that applies the fan-out of each hop to every relation separately. -1 selects all neighbors."""
    return dgl.dataloading.MultiLayerNeighborSampler([dict.fromkeys(g.canonical_etypes, int(f)) for f in fanouts])


def train_epoch(model, optimizers, rows, g, ids, args, epoch):
    """Train for an epoch with equally many steps on all ranks. Return the mean loss over all training nodes."""
    shares, total = [0] * dist.get_world_size(), torch.zeros(1)
    dist.all_gather_object(shares, len(ids))
    steps = -(-max(shares) // args.batch_size)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(args.seed * 1000 + epoch))
    sampler, label = make_sampler(g, args.fanouts.split(",")), g.nodes[args.target].data["label"]
    model.train()
    for step, seeds in enumerate(ids[order].tensor_split(steps)):
        of_all = sum(share // steps + (step < share % steps) for share in shares)
        input_nodes, _, blocks = sampler.sample_blocks(g, {args.target: seeds})
        loss = F.cross_entropy(model(blocks, rows.read(input_nodes)), label[seeds].long(), reduction="sum")
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss * len(shares) / of_all).backward()  # DDP divides by the number of ranks
        for optimizer in optimizers:
            optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / sum(shares)


def accuracy(scores, ids, label):
    """Return the accuracy over the nodes of all ranks, from summed counts instead of averaged accuracies."""
    counts = torch.tensor([(scores[ids].argmax(1) == label[ids]).sum(), len(ids)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def run(g, args):
    """Train, and compute exact scores of all nodes after each epoch. Rank 0 writes results, weights and embeddings."""
    train_ids, val_ids, test_ids = split(g, args.target)
    label, rows = g.nodes[args.target].data["label"], Rows(g, args.hidden)
    classes = label[torch.cat([train_ids, val_ids])].max().long() + 1
    dist.all_reduce(classes, dist.ReduceOp.MAX)
    torch.manual_seed(args.seed)  # every rank begins with the same weights
    widths = {name: table.shape[1] for name, table in rows.tables.items() if name not in rows.learned}
    layers = len(args.fanouts.split(","))
    alone = RGCN(g.canonical_etypes, args.target, widths, args.hidden, int(classes), layers, args.dropout)
    model, stores, epochs = DistributedDataParallel(alone), make_stores(alone, g), []
    learned = dgl.distributed.optim.SparseAdam(list(rows.learned.values()), lr=args.rows_lr)
    optimizers = [torch.optim.Adam(model.parameters(), lr=args.lr), learned]
    for epoch in range(args.num_epochs):
        seed_job(args.seed * 1000 + epoch)
        start = time.perf_counter()
        loss = train_epoch(model, optimizers, rows, g, train_ids, args, epoch)
        seconds, scores = time.perf_counter() - start, inference(alone, g, rows.tables, stores, make_sampler(g, [-1]))
        val = accuracy(scores, val_ids, label)
        epochs.append({"epoch": epoch, "loss": loss, "seconds": seconds, "val_accuracy": val})
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {val:.4f}  {seconds:.2f} s", flush=True)
    test, read = accuracy(scores, test_ids, label), torch.stack([rows.counts[name] for name in g.ntypes])
    dist.all_reduce(read)
    if dist.get_rank() == 0:
        found = {"epochs": epochs, "test_accuracy": test, "ranks": dist.get_world_size(), "widths": widths}
        Path(args.out).write_text(json.dumps({**found, "rows": dict(zip(g.ntypes, read.tolist()))}))
        tables = {name: rows.tables[name][torch.arange(g.num_nodes(name))] for name in rows.learned}
        torch.save({"model": alone.state_dict(), "learned": tables}, args.weights)


def main(args):
    run(join_job(args), args)
    leave_job()


if __name__ == "__main__":
    parser = arguments()
    parser.add_argument("--target", default="paper")
    parser.add_argument("--rows_lr", type=float, default=0.03)
    parser.add_argument("--weights", required=True, help="file for weights and learned rows, written at the end")
    options = parser.parse_args()
    if not options.out or options.checkpoint:
        parser.error("--out is needed, and there are no checkpoints")
    main(options)
