"""Share a DistTensor between two trainers and write their observations to scripts/out/tensors/job.json."""

import json
import os
import time

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistEmbedding, DistTensor

seen = {}


def ones(shape, dtype):
    print("ones", tuple(shape), "ran in a", os.environ["DGL_ROLE"], flush=True)
    return torch.ones(tuple(shape), dtype=dtype)


def attempt(what, action):
    try:
        seen[what] = action()
    except Exception as error:
        seen[what] = f"{type(error).__name__}: {error}"


attempt("embedding before initialize", lambda: DistEmbedding(64, 8, name="early", init_func=ones))
dgl.distributed.initialize("ip_config.txt")  # a server runs inside this call until the job ends
dist.init_process_group("gloo")
g = dgl.distributed.DistGraph("small")
rank, rows = dist.get_rank(), g.num_nodes()

dist.barrier()
if rank == 1:
    time.sleep(1.5)
start = time.perf_counter()
shared = DistTensor((rows, 1), torch.float32, name="shared", init_func=ones)
seen["waited"] = round(time.perf_counter() - start, 2)
seen["row 0"] = shared[[0]].item()

g.ndata["plain"] = torch.ones(rows, 1)
if rank == 0:
    shared[[3]] = g.ndata["plain"][[3]] = torch.tensor([[7.0]])
dist.barrier()
seen["row 3 of the DistTensor"] = shared[[3]].item()
seen["row 3 of a plain tensor"] = g.ndata["plain"][[3]].item()
attempt("one number for two rows", lambda: shared.__setitem__([0, 1], 2.0))
attempt("a lambda", lambda: DistTensor((rows, 1), torch.float32, name="lambda", init_func=lambda *_: torch.ones(rows)))
print(f"rank {rank} waited {seen['waited']} s for its first DistTensor", flush=True)

reports = [None] * dist.get_world_size()
dist.all_gather_object(reports, seen)
if rank == 0:
    with open("scripts/out/tensors/job.json", "w") as file:
        json.dump(reports, file)
dist.barrier()


def late(shape, dtype):  # like ones(), but only trainers reach this line
    return torch.ones(tuple(shape), dtype=dtype)


DistTensor((rows, 1), torch.float32, name="late", init_func=late)
