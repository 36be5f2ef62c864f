"""Create the GraphBolt mini-batches of one rank and combine numbers over all ranks."""

import dgl.graphbolt as gb
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchmetrics.functional as MF


def reshuffled(itemset, seed):
    """Return the items in an order that depends only on the seed and is the same on every rank."""
    order = torch.randperm(len(itemset), generator=torch.Generator().manual_seed(seed))
    return gb.ItemSet(tuple(column[order] for column in itemset[:]), names=itemset.names)


def item_sampler(itemset, args):
    """Return a sampler that divides this rank's share of the items into batches."""
    return gb.DistributedItemSampler(itemset, args.batch_size, drop_last=args.drop, drop_uneven_inputs=args.drop)


def create_dataloader(dataset, itemset, args, device):
    """Return batches of this rank's items, with seed nodes on the device, sampled neighbors, and their features."""
    datapipe = item_sampler(itemset, args)
    datapipe = datapipe.copy_to(device, extra_attrs=["seed_nodes"])
    datapipe = datapipe.sample_neighbor(dataset.graph, args.fanouts)
    datapipe = datapipe.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    if args.no_loader:  # a pipeline is iterable without a loader
        return datapipe
    return gb.DataLoader(datapipe, overlap_feature_fetch=device.type == "cuda")


def items_per_step(itemset, args, device):
    """Return the number of items that all ranks together have in step 0, 1, ..."""
    sizes = torch.tensor([len(batch.seed_nodes) for batch in item_sampler(itemset, args)], device=device).long()
    steps = torch.tensor(len(sizes), device=device)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    total = F.pad(sizes, (0, steps.item() - len(sizes)))
    dist.all_reduce(total)
    return total.tolist()


def weighted_reduce(total, weight, dst=0):
    """Return the sum of ``total`` over the ranks divided by the sum of ``weight``. Valid only on rank ``dst``."""
    total, weight = total.clone(), torch.tensor(float(weight), device=total.device)
    dist.reduce(total, dst)
    dist.reduce(weight, dst)
    return (total / weight).item()


@torch.no_grad()
def evaluate(model, batches, num_classes, device):
    """Return the accuracy on this rank's share of the items and their number, or (0, 0) without items."""
    model.eval()
    y, y_hat = [], []
    for batch in batches:
        y.append(batch.labels)
        y_hat.append(model(batch.blocks, batch.node_features["feat"]))
    if not y:
        return torch.zeros((), device=device), 0
    y = torch.cat(y)
    return MF.accuracy(torch.cat(y_hat), y, task="multiclass", num_classes=num_classes), len(y)
