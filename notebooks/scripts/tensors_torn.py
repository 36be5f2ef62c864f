"""Let two trainers write all rows in opposite order, and count the rows with values of both trainers."""

import json

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistTensor, rpc
from dgl.distributed.kvstore import PullRequest, PushRequest

WIDTH, ROUNDS = 65_536, 30  # writing a row of 256 KB takes long enough for two writes to overlap

dgl.distributed.initialize("ip_config.txt")
dist.init_process_group("gloo")
g = dgl.distributed.DistGraph("small")
rank, everyone = dist.get_rank(), torch.arange(g.num_nodes())
wide = DistTensor((len(everyone), WIDTH), torch.float32, name="wide")
ids = everyone if rank == 0 else everyone.flip(0)
rows = torch.full((len(ids), WIDTH), rank + 1.0)


def write_through(server):
    """Push rows as DGL does for remote rows. A push has no reply, so wait for the reply to a later read."""
    rpc.send_request(server, PushRequest(wide.kvstore_key, ids, rows))
    rpc.send_request(server, PullRequest(wide.kvstore_key, ids[:1]))
    rpc.recv_response()


ways = {
    "by the trainers": lambda: wide.__setitem__(ids, rows),
    "by one server": lambda: write_through(0),
    "by two servers": lambda: write_through(rank),
}
torn = {}
for way, write in ways.items():
    torn[way] = 0
    for _ in range(ROUNDS):
        dist.barrier()
        write()
        dist.barrier()  # both ranks have finished writing
        found = wide[everyone]
        torn[way] += int((found != found[:, :1]).any(1).sum())

if rank == 0:
    print(f"rank 0: torn rows of {ROUNDS * len(everyone)}: {torn}", flush=True)
    with open("scripts/out/tensors/torn.json", "w") as file:
        json.dump(torn, file)
