"""Train GraphSAGE with torchrun --standalone --nproc_per_node 2 scripts/ddp_train.py --graph FILE --out FILE."""

import argparse
import time
import warnings

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from leave import leave
from sage import GraphSAGE


def load_batches(graph, ids, args, epoch=0):
    """Return a loader of this rank's part of each batch. The order is equal on all ranks and new in every epoch."""
    warnings.filterwarnings("ignore", message="Dataloader CPU|Failed to check")  # Join overrides earlier filters
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(epoch))
    mine = ids[order[dist.get_rank() :: dist.get_world_size()]]
    sampler = dgl.dataloading.MultiLayerNeighborSampler([args.fanout] * 2)
    return dgl.dataloading.DataLoader(graph, mine, sampler, batch_size=args.batch_size // dist.get_world_size())


def train_epoch(model, optimizer, graph, ids, args, epoch):
    total = torch.zeros(1)
    with Join([model.train()]):  # Join sends zeros for a rank that has no batch left
        for step, (inputs, seeds, blocks) in enumerate(load_batches(graph, ids, args, epoch)):
            of_all = min(args.batch_size, len(ids) - step * args.batch_size)  # seed nodes of this step on all ranks
            scores = model(blocks, graph.ndata["feat"][inputs])
            loss = F.cross_entropy(scores, graph.ndata["label"][seeds], reduction="sum")
            optimizer.zero_grad()
            (loss * dist.get_world_size() / of_all).backward()  # DDP divides by the world size
            optimizer.step()
            total += loss.detach()
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)  # Join syncs the weights but not Adam's state. Rank 0 has made every step
    optimizer.load_state_dict(state[0])
    dist.all_reduce(total)  # after Join, which handles only the collectives of the model
    return total.item() / len(ids)  # mean over all IDs


@torch.no_grad()
def accuracy(model, graph, ids, args):
    model.eval()
    right = torch.zeros(1)
    for inputs, seeds, blocks in load_batches(graph, ids, args):
        right += (model(blocks, graph.ndata["feat"][inputs]).argmax(1) == graph.ndata["label"][seeds]).sum()
    dist.all_reduce(right)  # sum counts, because a mean of accuracies ignores the sizes of shares
    return right.item() / len(ids)


def main(args):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # so that dropout and neighbors differ between the ranks
    dgl.seed(dist.get_rank())
    graph = dgl.load_graphs(args.graph)[0][0]
    train_ids, val_ids = (graph.ndata[mask].nonzero().flatten() for mask in ("train_mask", "val_mask"))
    sizes = graph.ndata["feat"].shape[1], 64, int(graph.ndata["label"].max()) + 1
    model = DistributedDataParallel(GraphSAGE(*sizes, dropout=args.dropout))
    optimizer, epochs = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, graph, train_ids, args, epoch)
        seconds, val = time.perf_counter() - start, accuracy(model.module, graph, val_ids, args)
        epochs.append({"loss": loss, "seconds": seconds, "val_accuracy": val})
        if dist.get_rank() == 0:  # all ranks have the same values, so one rank writes them
            print(f"epoch {epoch}  loss {loss:.4f}  validation accuracy {val:.4f}  {seconds:.2f} s")
            torch.save({"epochs": epochs, "model": model.module.state_dict()}, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in {"graph": "", "out": "", "epochs": 5, "batch_size": 256, "fanout": 10, "dropout": 0.5}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    main(parser.parse_args())
    leave()
