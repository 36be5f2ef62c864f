"""A second solution of the holes in ``first.py``."""

import dgl
import torch
import torch.distributed as dist


def edges_into(g, mask):
    book = g.get_partition_book()
    mine = dgl.distributed.node_split(mask, partition_book=book)
    sources, targets = dgl.distributed.sample_neighbors(g, mine, fanout=-1).edges()
    return sources, targets


def count_remote(book, nodes):
    remote = set()
    for node in nodes.tolist():
        if book.nid2partid(torch.tensor([node])).item() != book.partid:
            remote.add(node)
    return len(remote)


def count_equal(labels, sources, targets):
    total = torch.tensor([(labels[sources] - labels[targets] == 0).sum()])
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total.item()
