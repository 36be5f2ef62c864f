"""Tests of ``job.py``. They start one or two real ranks, or replace functions of DGL and PyTorch that need machines."""

import os
from types import SimpleNamespace

import dgl
import pytest
import torch
import torch.distributed as dist

import job
from support.processes import fork


def arguments(config):
    return SimpleNamespace(ip_config="no_such_file.txt", graph_name="tiny", part_config=config)


def on_ranks(count, function, **variables):
    """Call the function on ranks whose environment is that of torchrun, and of these variables. "" removes one."""

    def on_rank(rank, _size):
        for name, value in variables.items():
            os.environ.pop(name, None)
            os.environ |= {name: value} if value else {}
        return function(rank)

    return fork(on_rank, count, threads=1, timeout=60)


def test_join_job_alone(tiny_config):
    """Without RANK, create a group with one rank and a HashStore. Return the DistGraph. Without OMP_NUM_THREADS, 1."""

    def join(_rank):
        torch.set_num_threads(2)
        g = job.join_job(arguments(tiny_config))
        return g.num_nodes(), dist.get_world_size(), dist.get_backend(), torch.get_num_threads()

    got, expected = on_ranks(1, join, RANK="", MASTER_ADDR="", OMP_NUM_THREADS=""), [(6, 1, "gloo", 1)]
    assert got == expected


def test_join_job_on_two_ranks(tiny_config):
    """With RANK, the other variables of torchrun contain everything that init_process_group needs."""

    def join(rank):
        g = job.join_job(arguments(tiny_config))
        return g.num_nodes(), dist.get_rank() == rank, dist.get_world_size(), torch.get_num_threads()

    got, expected = on_ranks(2, join, OMP_NUM_THREADS="3"), [(6, True, 2, 3)] * 2
    assert got == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_order_and_backend(monkeypatch, device):
    """DGL's guide calls initialize first, and DistGraph last. With a GPU, the group needs a backend for each device."""
    got = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(job, "choose_device", lambda: torch.device(device, 1 if device == "cuda" else None))
    monkeypatch.setattr(torch, "set_num_threads", lambda _count: None)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: got.append(str(gpu if isinstance(gpu, torch.device) else f"cuda:{gpu}"))
    )
    monkeypatch.setattr(dgl.distributed, "initialize", lambda ip_config, **_: got.append(ip_config))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: got.append(backend))
    for module in (job, dgl.distributed):
        monkeypatch.setattr(module, "DistGraph", lambda name, part_config: got.append((name, part_config)))
    job.join_job(arguments("tiny.json"))
    middle = {"cpu": ["gloo"], "cuda": ["cuda:1", "cpu:gloo,cuda:nccl"]}[device]
    expected = ["no_such_file.txt", *middle, ("tiny", "tiny.json")]
    assert got == expected


def test_split_on_two_ranks(tiny_config):
    """Without servers, each rank gets every second node of the mask, for all three masks."""

    def split(_rank):
        g = job.join_job(arguments(tiny_config))
        return {name: ids.tolist() for name, ids in job.split(g).items()}

    got = on_ranks(2, split)
    expected = [{"train": [0, 3], "val": [4], "test": [1]}, {"train": [2], "val": [5], "test": []}]
    assert got == expected


def test_split_on_machines(monkeypatch):
    """On machines, keep all nodes of node_split. Only the training nodes are split evenly. Pass the node type on."""
    calls = []

    def node_split(nodes, partition_book=None, ntype="_N", rank=None, force_even=True, **_):
        calls.append((nodes, partition_book, ntype, force_even))
        return torch.arange(3)

    for module in (job, dgl.distributed):
        monkeypatch.setattr(module, "node_split", node_split)
    monkeypatch.setenv("DGL_DIST_MODE", "distributed")
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    masks = {f"{name}_mask": f"mask of {name}" for name in ("train", "val", "test")}
    g = SimpleNamespace(nodes={"paper": SimpleNamespace(data=masks)}, get_partition_book=lambda: "book")
    shares = {name: ids.tolist() for name, ids in job.split(g, "paper").items()}
    got = shares, calls
    names = {"train": True, "val": False, "test": False}
    calls_expected = [(f"mask of {name}", "book", "paper", even) for name, even in names.items()]
    expected = {name: [0, 1, 2] for name in names}, calls_expected
    assert got == expected
