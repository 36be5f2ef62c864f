"""Measure the network traffic and the test MRR of each negative sampler, with train_link.py and several seeds."""

import dgl
import torch
import torch.distributed as dist

import train_link
from costs import received
from link_negatives import batches


def loader_of_dgl(g, edges):
    """Print how many edges of a batch remain in the blocks of DGL's loader."""
    sampler, negatives = dgl.dataloading.MultiLayerNeighborSampler([-1]), dgl.dataloading.negative_sampler.Uniform(1)
    options = {"batch_size": 64, "negative_sampler": negatives, "exclude": "self"}
    loader = dgl.dataloading.DistEdgeDataLoader(g, edges[:64], sampler, **options)
    _, pairs, negative_pairs, (block,) = next(iter(loader))
    leaked = int(torch.isin(pairs.edata[dgl.EID], block.edata[dgl.EID]).sum())
    print(f"DistEdgeDataLoader: {pairs.num_edges()} + {negative_pairs.num_edges()} pairs, {leaked} leaked", flush=True)


def cost(links, ids, args):
    """Return the mean seeds, input rows, remote rows and received bytes per batch of this rank, and the last batch."""
    g, book, counts = links.g, links.g.get_partition_book(), []
    torch.manual_seed(dist.get_rank())
    before = received()
    for blocks, places in batches(links, ids, args, epoch=0):
        inputs, seeds = blocks[0].srcdata[dgl.NID], blocks[-1].dstdata[dgl.NID]
        g.ndata["feat"][inputs]  # read the rows as a training step does
        batch = [seeds[nodes].tolist() for nodes in places]
        counts.append([len(seeds), len(inputs), int((book.nid2partid(inputs) != book.partid).sum())])
    came = (received() - before) / len(counts)
    means = dict(zip(("seeds", "rows", "remote"), torch.tensor(counts).double().mean(0).tolist(), strict=True))
    return {**means, "came": came, "batch": batch}  # node IDs of the last batch


def compare(links, ids, args):
    args.checkpoint = ""  # every training starts from the beginning
    loader_of_dgl(links.g, ids["train"])
    found = {}
    for way in args.ways.split(","):
        args.negatives, ranks, mrr = way, [None] * dist.get_world_size(), []
        dist.all_gather_object(ranks, cost(links, ids["train"], args))
        for seed in range(args.seeds):
            args.seed = seed
            mrr.append(train_link.run(links, ids, args)["test_mrr"])
        found[way] = {"ranks": ranks, "mrr": mrr}
    return found


if __name__ == "__main__":
    train_link.main(compare, ways="uniform,local,joint,local_joint", seeds=3)
