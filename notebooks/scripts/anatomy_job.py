"""Train six epochs with the pieces of earlier lessons and measure them. Usage: anatomy_job.py FOLDER (lesson 09)."""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
from dgl.dataloading import DistNodeDataLoader, NeighborSampler
from dgl.distributed import DistGraph, DistTensor, dist_context, rpc
from torch.nn.parallel import DistributedDataParallel

from leave import leave
from loop import train_epoch
from sage import GraphSAGE


def timed(loader, waits):
    """Yield the batches, and append the seconds of waiting for each of them to ``waits``."""
    start = time.perf_counter()
    for batch in loader:
        waits.append(time.perf_counter() - start)
        yield batch
        start = time.perf_counter()


def sums_over_seeds(g, loader):
    """Return sums over the seed nodes of an epoch that are not random: sampled edges, labels, first features."""
    sums = torch.zeros(3, dtype=torch.float64)
    for _, seeds, blocks in loader:
        rows = g.ndata["feat"][seeds].double()
        sums += torch.tensor([blocks[-1].num_edges(), g.ndata["label"][seeds].sum(), rows.sum()])
    return sums.tolist()


def stale_reads(table, row):
    """Write 300 values to a row and read each one immediately. Return the number of reads with an older value."""
    stale = 0
    for k in range(1, 301):
        table[[row]] = torch.full((1, table.shape[1]), float(k))
        stale += int((table[[row]] != k).any())
    return stale


def measure_epoch(g, ids, model, optimizer, pool, samplers):
    """Train an epoch with this number of samplers, at most the number in the pool. Return its measurements, a dict."""
    dist_context.SAMPLER_POOL = pool if samplers else None  # without samplers, the trainer samples
    loader, waits = DistNodeDataLoader(g, ids, NeighborSampler([10, 10]), batch_size=100, shuffle=True), []
    if samplers:
        in_pool, pool.num_workers, pool.current_proc_id = pool.num_workers, samplers, 0  # these get all batches
    dist.barrier()
    start = time.perf_counter()
    with model.join():
        loss = train_epoch(g, timed(loader, waits), model, optimizer)
    seconds, sums = time.perf_counter() - start, sums_over_seeds(g, loader)
    if samplers:
        pool.num_workers = in_pool
    return {"samplers": samplers, "seconds": seconds, "waits": sum(waits), "loss": loss, "sums": sums}


def wait_for_file(path):
    """Wait until a file exists, at most as long as the machines run."""
    deadline = time.monotonic() + 3 * 3600
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has written {path}")
        time.sleep(0.1)


def main(folder):
    faulthandler.register(signal.SIGUSR1)  # this signal prints the Python stack
    if os.environ.get("TORCH_FIRST") == os.environ["DGL_ROLE"]:  # the wrong order, to show its effect
        dist.init_process_group("gloo")
    dgl.distributed.initialize("ip_config.txt")  # a server never returns from this call
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, pool = dist.get_rank(), dist_context.SAMPLER_POOL
    found = {"clients": rpc.get_num_client(), "servers": rpc.get_num_server(), "epochs": []}
    try:
        DistGraph("another-name")
    except Exception as error:
        found["another name"] = f"{type(error).__name__}: {error}"
    g = DistGraph("synthetic-products")
    table = DistTensor((g.num_nodes(), 256), torch.float32, name="table")
    Path(folder, f"joined-{rank}").touch()
    wait_for_file(Path(folder, "go"))

    torch.manual_seed(0)  # all ranks start with the same weights
    model = DistributedDataParallel(GraphSAGE(g.ndata["feat"].shape[1], 64, 47))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids = dgl.distributed.node_split(g.ndata["train_mask"], force_even=True)
    for number in range(6):
        for samplers in range(pool.num_workers + 1 if pool else 1):
            found["epochs"].append(epoch := measure_epoch(g, ids, model, optimizer, pool, samplers))
        print(f"rank {rank}: epoch {number}, loss {epoch['loss']:.3f}", flush=True)
    dist_context.SAMPLER_POOL = pool  # DGL stops the samplers of the pool when the trainer exits
    found["stale reads"] = stale_reads(table, 0 if rank else g.num_nodes() - 1)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    if os.environ.get("KILL_RANK") == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dgl.distributed.exit_client()  # the servers exit after all clients have called this function
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
