"""A second solution of job.py, written from its docstrings and public tests."""

import os

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistGraph, node_split


def join_job(args):
    dgl.distributed.initialize(args.ip_config)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = choose_device()
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return DistGraph(args.graph_name, part_config=args.part_config)


def take_share(ids):
    if not is_standalone():
        return ids
    positions = torch.arange(dist.get_rank(), len(ids), dist.get_world_size())
    return ids[positions]


def split(g, ntype="_N"):
    data, book = g.nodes[ntype].data, g.get_partition_book()
    shares = {}
    for name in ("train", "val", "test"):
        ids = node_split(data[f"{name}_mask"], book, ntype, force_even=name == "train")
        shares[name] = take_share(ids)
    return shares
