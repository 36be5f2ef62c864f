"""Lesson 5: what the ranks do. Each function runs in every rank of ``tutorial_lib.processes.spawn``.

``devices[rank]`` is the rank's device: the CPU, or a GPU of its own. What comes back lies on the CPU. No DGL in here.
"""

# ruff: noqa: ARG001  (every rank function begins with the same three arguments)

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

Devices = Sequence[torch.device]
RATE = 0.125  # learning rate by hand; a power of two keeps the numbers of the lesson short


def introduce(rank: int, world_size: int, devices: Devices) -> str:
    """What a rank knows about itself and the others. Returns where it met them."""
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
    print(f"I am rank {rank} of {world_size}")
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def collectives(rank: int, world_size: int, devices: Devices) -> dict[str, list[float]]:
    """Four collectives, each on a copy of the same tiny tensor. Returns what this rank holds after each."""
    start = torch.tensor([1.0, 2.0], device=devices[rank]) * 10**rank
    held = {"at the start": start.tolist()}
    for name, collective in (
        ("broadcast(t, src=0)", lambda t: dist.broadcast(t, src=0)),
        ("reduce(t, dst=0)", lambda t: dist.reduce(t, dst=0)),
        ("all_reduce(t)", dist.all_reduce),
    ):
        tensor = start.clone()
        collective(tensor)  # in place
        held[name] = tensor.tolist()
    parts = [torch.empty_like(start) for _ in range(world_size)]
    dist.all_gather(parts, start)
    held["all_gather(parts, t)"] = torch.cat(parts).tolist()
    return held


def out_of_step(rank: int, world_size: int, devices: Devices) -> list[float]:
    """Rank 0 sums a gradient. Rank 1 has one batch less and already sums its right answers and its examples."""
    if rank == 0:
        tensor = torch.tensor([0.5, -0.25], device=devices[rank])
    else:
        tensor = torch.tensor([180.0, 256.0], device=devices[rank])
    dist.all_reduce(tensor)
    return tensor.tolist()


def loss_of(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of a linear model: weight (2,), x (n, 2), y (n,)."""
    return ((x @ weight - y) ** 2).mean()


def share(rows: Tensor, rank: int, world_size: int) -> Tensor:
    """This rank's rows. Each row is in one share; the first shares have one more if it does not come out even."""
    return rows.tensor_split(world_size)[rank]


def average(gradient: Tensor, examples: int, how: str) -> None:
    """Replace a rank's gradient, in place, by the mean over the ranks.

    Args:
        examples: of this rank.
        how: "plain" (each rank counts the same), "weighted" (each example counts the same) or "not at all".
    """
    if how == "plain":
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    if how == "weighted":
        total = gradient.new_tensor(examples)
        gradient *= examples
        dist.all_reduce(gradient)
        dist.all_reduce(total)
        gradient /= total


def by_hand(
    rank: int, world_size: int, devices: Devices, x: Tensor, y: Tensor, steps: int, how: str
) -> list[dict[str, Tensor]]:
    """Gradient descent on this rank's share of (x, y). Returns what the rank holds in each step."""
    x, y = (share(rows, rank, world_size).to(devices[rank]) for rows in (x, y))
    weight = torch.zeros(2, device=devices[rank], requires_grad=True)
    history = []
    for _step in range(steps):
        held = {"weight": weight}
        weight.grad = None
        loss_of(weight, x, y).backward()
        held["own gradient"] = weight.grad.clone()
        average(weight.grad, len(x), how)
        held["gradient"] = weight.grad
        weight = (weight.detach() - RATE * weight.grad).requires_grad_()
        held["weight after"] = weight
        history.append({name: tensor.detach().cpu() for name, tensor in held.items()})
    return history


class Net(nn.Module):
    """Two linear layers with 59 parameters, on inputs that are shifted by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(4))
        self.layers = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x - self.shift)


def wrap(model: nn.Module, device: torch.device, **options: Any) -> DistributedDataParallel:
    """DDP of a model. One process, one GPU; a model on the CPU takes no device ids."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return DistributedDataParallel(model.to(device), device_ids=[device], output_device=device, **options)
    return DistributedDataParallel(model, **options)


def construct(rank: int, world_size: int, devices: Devices) -> dict[str, dict[str, Tensor]]:
    """What this rank holds before and after DDP takes over its model."""
    torch.manual_seed(rank)  # other first weights in each rank
    model = Net()
    model.shift += rank  # and another buffer
    held = {"before DDP": snapshot(model)}
    ddp = wrap(model, devices[rank])
    held["after DDP(model)"] = snapshot(model)
    if rank == 1:
        with torch.no_grad():
            model.shift += 5
            model.layers[0].bias += 5
    held["rank 1 adds 5"] = snapshot(model)
    ddp(torch.zeros(1, 4, device=devices[rank]))
    held["after a forward"] = snapshot(model)
    return held


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, on the CPU."""
    return {name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}


def train_ddp(
    rank: int, world_size: int, devices: Devices, x: Tensor, y: Tensor, batch_size: int, weighted: bool
) -> list[Tensor]:
    """One epoch; each batch is divided over the ranks. Returns all weights as one vector, after each step."""
    device = devices[rank]
    torch.manual_seed(0)
    model = wrap(Net(), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    after_each_step = []
    for batch in torch.arange(len(x)).split(batch_size):
        own = share(batch, rank, world_size)
        loss = F.cross_entropy(model(x[own].to(device)), y[own].to(device))
        if weighted:
            loss = loss * len(own) * world_size / len(batch)  # DDP will divide by world_size
        optimizer.zero_grad()
        loss.backward()  # DDP averages in here
        optimizer.step()
        after_each_step.append(parameters_to_vector(model.parameters()).detach().cpu())
    return after_each_step


Event = tuple[float, str, str]  # seconds, what happened, names of the parameters


def tower(width: int = 512, depth: int = 4) -> nn.Sequential:
    """Equal linear layers, named 0, 2, 4 and 6, with a ReLU after each."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


def watch_backward(
    rank: int, world_size: int, devices: Devices, x: Tensor, bucket_mb: float
) -> tuple[list[list[Event]], Tensor]:
    """Two backward passes under DDP with notes. Returns the events of each, and the gradient as one vector."""
    model = wrap(tower(), devices[rank], bucket_cap_mb=bucket_mb)
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    log: list[Event] = []

    def note(what: str, of: str = "") -> None:
        log.append((time.perf_counter(), what, of))

    def reduce_bucket(_state, bucket):  # DDP refuses annotations that are text, as all are in this module
        """In place of DDP's own all-reduce, which does the same without notes."""
        inside = " ".join(names[id(parameter)] for parameter in bucket.parameters())
        note("starts", inside)
        work = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True)

        def done(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            note("done", inside)
            return future.value()[0]

        return work.get_future().then(done)

    model.register_comm_hook(None, reduce_bucket)
    for parameter in model.parameters():
        parameter.register_hook(lambda _gradient, name=names[id(parameter)]: note("gradient", name))
    x, logs = share(x, rank, world_size).to(devices[rank]), []
    for _step in range(2):
        model.zero_grad()
        loss = model(x).square().mean()
        dist.barrier()
        log.clear()
        note("begin")
        loss.backward()
        note("end")
        logs.append([(seconds - log[0][0], what, of) for seconds, what, of in log])
    return logs, parameters_to_vector(p.grad for p in model.parameters()).cpu()


def unequal_steps(rank: int, world_size: int, devices: Devices, seconds: float, join: bool) -> tuple[int, Tensor]:
    """Rank 0 has three batches, rank 1 has two. On the CPU in any case: gloo raises an error when time is up."""
    dist.barrier()
    limited = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(2, 1), process_group=limited)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dist.barrier()
    batches = [torch.ones(4, 2)] * (3 - rank)
    with Join([model]) if join else contextlib.nullcontext():
        for x in batches:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    return len(batches), parameters_to_vector(model.parameters()).detach()


def accuracies(rank: int, world_size: int, devices: Devices, right: Sequence[Tensor]) -> dict[str, float]:
    """Accuracy over all ranks in two ways. ``right[rank]`` says of each of the rank's answers if it is right."""
    own = right[rank].double().mean().to(devices[rank])
    mean = own.clone()
    dist.all_reduce(mean)
    counts = torch.tensor([right[rank].sum(), len(right[rank])], device=devices[rank])
    dist.all_reduce(counts)
    correct, answers = counts.tolist()
    return {"own": own.item(), "mean of accuracies": mean.item() / world_size, "global": correct / answers}


def one_fails(rank: int, world_size: int, devices: Devices) -> None:
    """Rank 1 cannot go on; rank 0 waits for it."""
    if rank == 1:
        raise ValueError("a label of mine is -1")
    dist.all_reduce(torch.ones(1, device=devices[rank]))
