"""Train link prediction, with the options of scripts/train.py and three more. Edges replace the training nodes."""

import json
import time
from pathlib import Path

import dgl
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import train_before as train
from link_edges import Links, split
from link_negatives import batches, pair_loss
from link_scores import embed, mean_reciprocal_rank
from sage import GraphSAGE
from seeds import seed_job


def train_epoch(model, optimizer, links, ids, args, epoch):
    """Train for an epoch with equally many batches per rank (no Join). Return the mean loss of all steps and ranks."""
    losses = []
    for blocks, places in batches(links, ids, args, epoch):
        x = links.g.ndata["feat"][blocks[0].srcdata[dgl.NID]]
        loss = pair_loss(F.normalize(model.train()(blocks, x)), *places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).mean() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def run(links, ids, args):
    """Train up to ``num_epochs``, from the checkpoint if one exists. Return all epochs and the MRR of test edges."""
    torch.manual_seed(args.seed)  # every rank begins with the same weights
    sizes = links.g.ndata["feat"].shape[1], args.hidden, args.hidden, len(args.fanouts.split(","))
    model = DistributedDataParallel(GraphSAGE(*sizes, dropout=args.dropout))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    epochs, h = train.load(model.module, optimizer, args), None
    for epoch in range(len(epochs), args.num_epochs):
        seed_job(args.seed * 1000 + epoch)
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, links, ids["train"], args, epoch)
        seconds, h = time.perf_counter() - start, embed(model.module, links)
        val = mean_reciprocal_rank(h, links, ids["val"])
        epochs.append({"epoch": epoch, "loss": loss, "seconds": seconds, "val_mrr": val})
        train.save(model.module, optimizer, epochs, args)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}  loss {loss:.4f}  validation MRR {val:.4f}  {seconds:.2f} s", flush=True)
    h = embed(model.module, links) if h is None else h  # h is None if the checkpoint had all epochs
    return {"epochs": epochs, "test_mrr": mean_reciprocal_rank(h, links, ids["test"])}


def main(work=run, **more):
    """Join the job, split the edges, call ``work`` and write its result. Programs that extend this one add ``more``."""
    parser = train.arguments()
    for name, default in {"negatives": "uniform", "num_negatives": 1, "epoch_edges": 10_000, **more}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.set_defaults(fanouts="5,5", batch_size=250, hidden=32, dropout=0.0)
    args = parser.parse_args()
    g = train.join_job(args)
    links = Links(g, torch.from_numpy(np.load(Path(args.part_config).with_name("node_map.npy"))))
    ids = split(links)
    print("edges:", *(f"{name} {len(share)}" for name, share in ids.items()), flush=True)
    found = work(links, ids, args)
    if args.out and dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(found))
    train.leave_job()


if __name__ == "__main__":
    main()
