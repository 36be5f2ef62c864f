"""Run a small DGL job. All servers and trainers run this file. Usage: anatomy_job.py FOLDER"""

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
from dgl.distributed import DistGraph, DistTensor, dist_context, rpc
from torch.nn.parallel import DistributedDataParallel

from anatomy_epoch import stale_reads, train_epoch
from leave import leave
from sage import GraphSAGE


def main(folder):
    faulthandler.register(signal.SIGUSR1)
    if os.environ.get("FIRST") == "torch":  # the wrong order, to show its effect
        dist.init_process_group("gloo")
    dgl.distributed.initialize("ip_config.txt")  # a server never returns from this call
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, pool = dist.get_rank(), dist_context.SAMPLER_POOL
    found = {"client": rpc.get_rank(), "clients": rpc.get_num_client(), "servers": rpc.get_num_server(), "epochs": []}
    try:
        DistGraph("another-name")
    except Exception as error:
        found["another name"] = f"{type(error).__name__}: {error}"
    g = DistGraph("synthetic-products")
    table = DistTensor((g.num_nodes(), 256), torch.float32, name="table")
    Path(folder, f"joined-{rank}").touch()
    deadline = time.monotonic() + 3 * 3600  # the lifetime of the machines (--ttl 3h)
    while not Path(folder, "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has written {folder}/go")
        time.sleep(0.1)

    torch.manual_seed(0)  # all ranks start with the same weights
    model = DistributedDataParallel(GraphSAGE(g.ndata["feat"].shape[1], 64, 47))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids = dgl.distributed.node_split(g.ndata["train_mask"], force_even=True)
    for epoch in range(6):
        for samplers in range(pool.num_workers + 1 if pool else 1):
            found["epochs"].append(train_epoch(model, optimizer, g, ids, pool, samplers))
        print(f"rank {rank}: epoch {epoch}", flush=True)
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
