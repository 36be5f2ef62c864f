"""Train for an epoch and measure the time of its parts, for anatomy_job.py."""

import time

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.distributed import DistDataLoader, dist_context


class Sampler:
    """Samples the blocks of a batch in a sampler process, or in the trainer if the job has no sampler processes."""

    def __init__(self, g):
        self.g = g

    def sample_blocks(self, ids):
        seeds, blocks = torch.as_tensor(ids), []
        for fanout in (10, 10):
            frontier = dgl.distributed.sample_neighbors(self.g, seeds, fanout)
            blocks.insert(0, dgl.to_block(frontier, seeds))
            seeds = blocks[0].srcdata[dgl.NID]
        return blocks


def train_epoch(model, optimizer, g, ids, pool=None, samplers=0):
    """Train for an epoch. Return seconds for batches, rows and computing, and non-random sums over the seed nodes."""
    spent, sums = torch.zeros(3), torch.zeros(3, dtype=torch.float64)
    dist_context.SAMPLER_POOL = pool if samplers else None  # None makes the trainer sample its batches
    loader = DistDataLoader(ids, batch_size=100, collate_fn=Sampler(g).sample_blocks, queue_size=8, shuffle=True)
    if samplers:
        of_job, pool.num_workers, pool.current_proc_id = pool.num_workers, samplers, 0  # these get all batches
    dist.barrier()
    done = time.perf_counter()
    with model.join():  # all ranks make the same number of steps, so Adam's state needs no copy (lesson 07)
        for blocks in loader:
            times = [done, time.perf_counter()]  # the trainer waited for the batch until now
            x, y = g.ndata["feat"][blocks[0].srcdata[dgl.NID]], g.ndata["label"][blocks[-1].dstdata[dgl.NID]]
            times.append(time.perf_counter())  # the rows have arrived
            loss = F.cross_entropy(model(blocks, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(done := time.perf_counter())  # the gradients of all ranks are averaged and applied
            spent += torch.tensor(times, dtype=torch.float64).diff()
            sums += torch.tensor([blocks[-1].num_edges(), y.sum(), x[: len(y)].double().sum()])
    if samplers:
        pool.num_workers = of_job
    return {"samplers": samplers, "seconds": spent.tolist(), "sums": sums.tolist()}


def stale_reads(table, row):
    """Write 300 values to a row and read each one immediately. Return the number of reads with an older value."""
    stale = 0
    for k in range(1, 301):
        table[[row]] = torch.full((1, table.shape[1]), float(k))
        stale += int((table[[row]] != k).any())
    return stale
