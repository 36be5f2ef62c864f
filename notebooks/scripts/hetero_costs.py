"""Count the rows of each type that a rank reads, and the bytes that each machine receives in an epoch (lesson 15)."""

import json
from collections import Counter
from pathlib import Path

import dgl
import torch.distributed as dist

from costs import received
from hetero import OPTIONS, TypedTask
from job import arguments, join_job, leave_job
from seeds import seed_job
from train import train_epoch


class CountingTask(TypedTask):
    """Count the rows of the batches by type, and the rows of the other machine among them."""

    def read(self, sample):
        book, nodes = self.g.get_partition_book(), sample[1][0].srcnodes
        for ntype in self.tables:
            ids = nodes[ntype].data[dgl.NID]
            self.read_rows[ntype] += len(ids)
            self.remote[ntype] += int((book.nid2partid(ids, ntype) != book.partid).sum())
        self.steps += 1
        return super().read(sample)


if __name__ == "__main__":
    args = arguments(**OPTIONS).parse_args()
    task = CountingTask(join_job(args), args)
    for epoch in range(2):  # the first one opens connections
        seed_job(epoch)
        task.read_rows, task.remote, task.steps = Counter(), Counter(), 0
        before = received()
        train_epoch(task, epoch)
        size = received() - before
    found = {"read": task.read_rows, "remote": task.remote, "steps": task.steps, "bytes": size}
    found["parameters"] = sum(parameter.numel() for parameter in task.model.parameters())
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, found)
    if dist.get_rank() == 0:
        Path(args.out).write_text(json.dumps(ranks))
    leave_job()
