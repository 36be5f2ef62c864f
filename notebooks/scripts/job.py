"""Join a job, take a share of its nodes, and leave the job. Every process of a job runs this code (lesson 10).

======================  ==================================================  =======================================
the program is started  variables of the process                            each rank opens
======================  ==================================================  =======================================
alone                   none                                                the whole graph (a partition with one part)
by torchrun, 1 machine  RANK, WORLD_SIZE, ...                               the whole graph
on machines             the same, DGL_DIST_MODE=distributed, DGL_ROLE, ...  the part of its machine
======================  ==================================================  =======================================
"""

import argparse
import os

import dgl
import torch
import torch.distributed as dist
from dgl.distributed import DistGraph, node_split

from leave import leave


def arguments(**more):
    """Return the parser of the options, for train.py and for programs that add ``more`` options with their defaults."""
    parser = argparse.ArgumentParser()
    for name in ("graph_name", "part_config", "ip_config"):
        parser.add_argument(f"--{name}", required=True)
    options = {"num_epochs": 3, "batch_size": 256, "fanouts": "10,10", "hidden": 64, "dropout": 0.5, "lr": 0.01}
    options |= {"seed": 0, "cache": 0, "eval_every": 1, "checkpoint": "", "best": "", "out": ""}
    for name, default in {**options, **more}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser


def is_standalone():
    """Return True if this process has no DGL servers, so that it has opened the whole graph."""
    return os.environ.get("DGL_DIST_MODE", "standalone") == "standalone"


def choose_device():
    """Return the GPU of this rank (``LOCAL_RANK``), or the CPU.

    A GPU is used if DGL supports CUDA and the machine has a GPU for each of its ``LOCAL_WORLD_SIZE`` ranks. All
    machines of a job must come to the same result.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if "+cu" in dgl.__version__ and torch.cuda.device_count() >= ranks:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def join_job(args):
    """Connect this process to the servers and to the other ranks, and return the DistGraph.

    1. Call ``dgl.distributed.initialize``. In a server process, this call runs the server and never returns.
    2. Set the number of torch's threads to the variable OMP_NUM_THREADS, or to 1 without this variable.
    3. Initialize the process group with the backend "cpu:gloo,cuda:nccl" if ``choose_device()`` is a GPU, which becomes
       the current CUDA device, and "gloo" otherwise. Without the variable RANK, no tool has started the program. Then
       the group has one rank and the store ``dist.HashStore()``, which needs no address.
    4. Open the ``DistGraph``.

    Args:
        args: has ``ip_config`` (file), ``graph_name`` and ``part_config`` (file).
    """
    dgl.distributed.initialize(args.ip_config)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    device = choose_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return DistGraph(args.graph_name, part_config=args.part_config)


def take_share(ids):
    """Return the nodes of this rank among the nodes that ``node_split`` has returned.

    On machines, ``node_split`` returns different nodes on each rank, and this function returns all of them. If
    ``is_standalone()``, it returns the nodes of the whole graph on every rank. Then rank r takes the positions r,
    r + world_size, and so on.
    """
    if is_standalone():
        return ids[dist.get_rank() :: dist.get_world_size()]
    return ids


def split(g, ntype="_N"):
    """Return the training, validation and test nodes of this rank, a dict with the keys "train", "val" and "test".

    ``node_split`` divides the nodes of a mask, such as ``g.nodes[ntype].data["train_mask"]``. It needs the partition
    book and ``ntype``, too. The sizes of the training shares differ by at most one (``force_even``). The validation and
    test nodes stay on the machine that owns them, so that their scores need no network. ``take_share`` then selects the
    nodes of this rank.
    """
    shares = {}
    for name in ("train", "val", "test"):
        mask = g.nodes[ntype].data[f"{name}_mask"]
        ids = node_split(mask, g.get_partition_book(), ntype=ntype, force_even=name == "train")
        shares[name] = take_share(ids)
    return shares


def leave_job():
    """End this process after all ranks have called this function. Then the servers exit, too."""
    if not is_standalone():
        dgl.distributed.exit_client()
    leave()
