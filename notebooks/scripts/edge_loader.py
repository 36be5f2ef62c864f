"""Count the edges of a batch that remain in the blocks of DGL's loader on each rank of a job (lesson 13)."""

import dgl
import torch
import torch.distributed as dist

from job import arguments, join_job, leave_job


def main(args):
    g = join_job(args)
    book = g.get_partition_book()
    edges = book.partid2eids(book.partid)[:64]
    sampler, negatives = dgl.dataloading.MultiLayerNeighborSampler([-1]), dgl.dataloading.negative_sampler.Uniform(1)
    options = {"batch_size": 64, "negative_sampler": negatives, "exclude": "self"}
    loader = dgl.dataloading.DistEdgeDataLoader(g, edges, sampler, **options)
    _, pairs, negative_pairs, (block,) = next(iter(loader))
    found = torch.isin(pairs.edata[dgl.EID], block.edata[dgl.EID]).sum()
    print(f"rank {dist.get_rank()}: {pairs.num_edges()} edges and {negative_pairs.num_edges()} negatives", end="")
    print(f", {found} edges of the batch in the block", flush=True)
    leave_job()


if __name__ == "__main__":
    main(arguments().parse_args())
