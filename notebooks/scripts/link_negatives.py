"""Sample negatives in four ways. Each edge (u, v) gets k nodes x such that (u, x) is most likely not an edge."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def uniform(g, src, dst, k):
    """Return k random nodes of the whole graph for each edge, int64 (B, k)."""
    return torch.randint(g.num_nodes(), (len(src), k))


def local(g, src, dst, k):
    """Return k random nodes of this machine's part for each edge, int64 (B, k)."""
    book = g.get_partition_book()
    own = book.partid2nids(book.partid)
    return own[torch.randint(len(own), (len(src), k))]


def joint(g, src, dst, k):
    """Return k random nodes of the whole graph, the same for all edges of a batch, int64 (B, k)."""
    return uniform(g, src[:1], dst, k).expand(len(src), k)


def local_joint(g, src, dst, k):
    """Return k random nodes of this machine's part, the same for all edges of a batch, int64 (B, k)."""
    return local(g, src[:1], dst, k).expand(len(src), k)


WAYS = {"uniform": uniform, "local": local, "joint": joint, "local_joint": local_joint}


def batches(links, ids, args, epoch):
    """Yield blocks and positions. Each rank samples equally many of its training edges, anew in every epoch."""
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(args.seed * 1000 + epoch))
    fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
    smallest = torch.tensor(len(ids))
    dist.all_reduce(smallest, dist.ReduceOp.MIN)  # shares can differ by one edge, but the steps must be equal
    for edges in ids[order[: min(args.epoch_edges // dist.get_world_size(), int(smallest))]].split(args.batch_size):
        yield links.batch(edges, fanouts, WAYS[args.negatives], args.num_negatives)


def pair_loss(h, src, dst, others):
    """Return the binary cross-entropy with target 1 for edges and 0 for negatives. The rows of h have length 1."""
    positive = 10 * (h[src] * h[dst]).sum(1) - 5
    negative = 10 * torch.einsum("bd,bkd->bk", h[src], h[others]) - 5
    return (F.softplus(-positive).mean() + F.softplus(negative).mean()) / 2
