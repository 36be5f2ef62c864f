"""Negatives: for each edge (u, v) of a batch k nodes x, so that (u, x) is most likely none. Four ways to draw them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def uniform(g, src, dst, k):
    """Other nodes for each edge, from the whole graph; int64 (B, k)."""
    return torch.randint(g.num_nodes(), (len(src), k))


def local(g, src, dst, k):
    """Other nodes for each edge, from this machine's part."""
    book = g.get_partition_book()
    own = book.partid2nids(book.partid)
    return own[torch.randint(len(own), (len(src), k))]


def joint(g, src, dst, k):
    """The same nodes for all edges of a batch, from the whole graph."""
    return uniform(g, src[:1], dst, k).expand(len(src), k)


def local_joint(g, src, dst, k):
    """The same nodes for all edges of a batch, from this machine's part."""
    return local(g, src[:1], dst, k).expand(len(src), k)


WAYS = {"uniform": uniform, "local": local, "joint": joint, "local_joint": local_joint}


def batches(links, ids, args, epoch):
    """Blocks and places. Each rank takes equally many of its training edges, other ones in every epoch."""
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(args.seed * 1000 + epoch))
    fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
    smallest = torch.tensor(len(ids))
    dist.all_reduce(smallest, dist.ReduceOp.MIN)  # shares may differ by one edge, and nobody may make a step more
    for edges in ids[order[: min(args.epoch_edges // dist.get_world_size(), int(smallest))]].split(args.batch_size):
        yield links.batch(edges, fanouts, WAYS[args.negatives], args.num_negatives)


def pair_loss(h, src, dst, others):
    """Binary cross-entropy: 1 for edges, 0 for pairs with negatives. The vectors h have length 1."""
    positive = 10 * (h[src] * h[dst]).sum(1) - 5
    negative = 10 * torch.einsum("bd,bkd->bk", h[src], h[others]) - 5
    return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2
