"""Count the edges into training nodes that join nodes of equal classes, on all machines (lesson 00)."""

import sys

import dgl
import torch.distributed as dist

if __name__ == "__main__":
    dgl.distributed.initialize("ip_config.txt")  # connects to the servers. A server does not return from this call
    dist.init_process_group("gloo")  # connects the trainers
    rank = dist.get_rank()

    g = dgl.distributed.DistGraph("synthetic-products", part_config=sys.argv[1])
    book = g.get_partition_book()  # returns the part of a node
    mine = dgl.distributed.node_split(g.ndata["train_mask"], book)  # this trainer's share of the training nodes
    sources, targets = dgl.distributed.sample_neighbors(g, mine, -1).edges()  # -1 selects all edges into these nodes

    rows = sources.unique()
    remote = (book.nid2partid(rows) != book.partid).sum()
    print(f"rank {rank}: {len(mine)} training nodes, {len(rows):,} neighbors, {remote:,} on the other machine")

    equal = (g.ndata["label"][sources] == g.ndata["label"][targets]).sum()
    dist.all_reduce(equal)  # every rank receives the sum over all ranks
    print(f"rank {rank}: in all {equal} edges join equal classes")
