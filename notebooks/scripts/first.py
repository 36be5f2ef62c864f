"""Count the edges into training nodes that join nodes of equal classes, on all machines (lesson 00)."""

import os
import sys

import dgl
import torch.distributed as dist


def edges_into(g, mask):
    """Return the edges into this trainer's share of some nodes, as two tensors (sources, targets).

    Args:
        g: DistGraph. ``dgl.distributed.sample_neighbors(g, nodes, -1)`` returns a graph with all edges into nodes, and
            its method ``edges()`` returns them as two tensors.
        mask: DistTensor that is true for some nodes. ``dgl.distributed.node_split(mask, book)`` returns the IDs of
            this trainer's share of these nodes, where ``book`` is ``g.get_partition_book()``.
    """
    nodes = dgl.distributed.node_split(mask, g.get_partition_book())
    subgraph = dgl.distributed.sample_neighbors(g, nodes, -1)
    return subgraph.edges()


def count_remote(book, nodes):
    """Return how many different nodes of a list another machine stores.

    Args:
        book: partition book. ``book.nid2partid(nodes)`` returns the part of each node, and ``book.partid`` is the
            part that this machine stores.
        nodes: int64 tensor of node IDs. An ID can occur several times and counts once.
    """
    different = nodes.unique()
    parts = book.nid2partid(different)
    remote = parts != book.partid
    return int(remote.sum())


def count_equal(labels, sources, targets):
    """Return the number of edges between nodes of equal labels, summed over all trainers.

    ``dist.all_reduce(tensor)`` replaces the tensor by its sum over all trainers, so each of them returns this sum.

    Args:
        labels: DistTensor with the label of each node. ``labels[nodes]`` reads the labels of some nodes.
        sources, targets: the edges of this trainer.
    """
    read = labels[sources]
    equal = read == labels[targets]
    count = equal.sum()
    dist.all_reduce(count)
    return int(count)


if __name__ == "__main__":
    dgl.distributed.initialize("ip_config.txt")  # connects to the servers. A server does not return from this call
    dist.init_process_group("gloo")  # connects the trainers
    rank = dist.get_rank()
    print(f"rank {rank}: DGL_DIST_MODE is {os.environ['DGL_DIST_MODE']}")

    g = dgl.distributed.DistGraph("synthetic-products", part_config=sys.argv[1])
    sources, targets = edges_into(g, g.ndata["train_mask"])
    remote = count_remote(g.get_partition_book(), sources)
    print(f"rank {rank}: {len(sources.unique()):,} neighbors, {remote:,} of them on the other machine")
    print(f"rank {rank}: in all {count_equal(g.ndata['label'], sources, targets)} edges join equal classes")
