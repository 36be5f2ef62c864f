"""Measure each way to sample negatives: nodes, rows and bytes of a batch, and the test MRR of several seeds."""

import json
from pathlib import Path

import dgl
import torch
import torch.distributed as dist

from costs import received
from job import arguments, join_job, leave_job
from link import OPTIONS, LinkTask
from train import fit, make_steps


def count(task):
    """Return means over the batches of an epoch of this rank: seed nodes, input rows, remote rows, received bytes."""
    book, counts = task.g.get_partition_book(), []
    before = received()
    for edges, _ in make_steps(task.ids["train"], task.args.batch_size, 0):
        sample = task.sample(edges)
        task.read(sample)
        inputs = sample[0][0].srcdata[dgl.NID]
        remote = int((book.nid2partid(inputs) != book.partid).sum())
        counts.append([sample[0][-1].num_dst_nodes(), len(inputs), remote])
    means = torch.tensor(counts).double().mean(0).tolist()
    return dict(zip(("nodes", "rows", "remote", "bytes"), [*means, (received() - before) / len(counts)], strict=True))


def main(args):
    g, found = join_job(args), {}
    for way in args.ways.split(","):
        args.negatives, ranks, scores = way, [None] * dist.get_world_size(), []
        for seed in range(args.seeds):
            args.seed = seed
            task = LinkTask(g, args)
            if seed == 0:
                dist.all_gather_object(ranks, count(task))
            scores.append(fit(task)[-1]["test_mrr"])
        found[way] = {"ranks": ranks, "mrr": scores}
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(found))
    leave_job()


if __name__ == "__main__":
    main(arguments(**OPTIONS, ways="uniform,local,joint,local_joint", seeds=3).parse_args())
