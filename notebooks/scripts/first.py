"""Of the edges into training nodes, how many join equal classes? Counted on all machines. Lesson 00."""

import sys

import dgl
import torch.distributed as dist

if __name__ == "__main__":
    dgl.distributed.initialize("ip_config.txt")  # connects to the servers; a server stays in this line
    dist.init_process_group("gloo")  # connects the trainers
    rank = dist.get_rank()

    g = dgl.distributed.DistGraph("synthetic-products", part_config=sys.argv[1])
    book = g.get_partition_book()  # knows which part owns a node
    mine = dgl.distributed.node_split(g.ndata["train_mask"], book)  # this trainer's share
    sources, targets = dgl.distributed.sample_neighbors(g, mine, -1).edges()  # -1: all edges into these nodes

    rows = sources.unique()
    remote = (book.nid2partid(rows) != book.partid).sum()
    print(f"rank {rank}: {len(mine)} training nodes, {len(rows):,} neighbors, {remote:,} on the other machine")

    equal = (g.ndata["label"][sources] == g.ndata["label"][targets]).sum()
    dist.all_reduce(equal)  # the sum over all ranks, on every rank
    print(f"rank {rank}: in all {equal} edges join equal classes")
