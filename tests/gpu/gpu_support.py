"""Computations of the GPU tests on any device: a layer with its gradients, and ranks under DDP."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.models.graphsage import CscBlock, GraphSAGE
from tutorial_lib.trainer.placement import Placement

TOLERANCE = 1e-5


def random_block(dst: int, src: int, edges: int, seed: int = 0, reached: int | None = None) -> CscBlock:
    """A block whose first ``reached`` destination nodes (None: all) have the edges."""
    generator = torch.Generator().manual_seed(seed)
    into = torch.randint(reached or dst, (edges,), generator=generator)
    indptr = torch.zeros(dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(into, minlength=dst).cumsum(0)
    return CscBlock(indptr, torch.randint(src, (edges,), generator=generator))


BLOCKS = {
    "random": (400, 1000, 3000),
    "empty neighborhoods": (50, 80, 60, 2, 10),
    "isolated nodes only": (7, 9, 0),
    "one node": (1, 1, 1),
}


def run_layer(layer: torch.nn.Module, block: Any, x: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Return the output and the gradients of a layer by name, on the CPU."""
    layer = layer.to(device)
    layer.zero_grad()
    x = x.to(device).detach().requires_grad_()
    y = layer(block, x)
    (y * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum().backward()
    found = {"y": y, "x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest difference of two dicts of tensors, relative to values above 1."""
    return max(float((found[k] - b).abs().max() / b.abs().max().clamp(min=1)) for k, b in expected.items())


def make_batch(size: int, seed: int = 0) -> tuple[list[CscBlock], Tensor, Tensor]:
    """Blocks of three hops as with fan-out 15,10,5 (outermost first), features and labels."""
    sizes = [size, 5 * size, 25 * size, 60 * size]
    blocks = [random_block(sizes[k], sizes[k + 1], sizes[k] * (5, 10, 15)[k], seed + k) for k in (2, 1, 0)]
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (size,), generator=generator)
    return blocks, torch.rand(sizes[3], 100, generator=generator), labels


def train_ranks(rank: int, world_size: int, devices: tuple[torch.device, ...]) -> list[float]:
    """Train five steps with DDP, and return the mean loss over all ranks of each step."""
    import torch.distributed as dist

    place = Placement(devices[rank])
    torch.manual_seed(0)
    plain = GraphSAGE(100, 32, 10, dropout=0.0).to(place.device)
    model = place.wrap(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        blocks, features, labels = make_batch(64, seed=10 * (step * world_size + rank))
        blocks, features, labels = place.to_device(blocks, features, labels)
        loss = F.cross_entropy(model(blocks, features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def train_with_pieces(rank: int, world_size: int, devices: tuple[torch.device, ...], buckets: bool) -> list[float]:
    """Train five steps with ``parallel.py`` of lesson 05, and return the loss of each global batch."""
    from scripts.parallel import BucketAverage, average_gradients, broadcast_model, train_step

    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)).to(devices[rank])
    broadcast_model(model)
    average = BucketAverage(model, limit=1000).finish if buckets else lambda: average_gradients(model)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 20, generator=generator), torch.randint(5, (60,), generator=generator)
    x, y, optimizer = x.to(devices[rank]), y.to(devices[rank]), torch.optim.SGD(model.parameters(), lr=0.5)
    batches = torch.randperm(60, generator=generator).to(devices[rank]).split(12)
    return [train_step(model, optimizer, x, y, batch, average) for batch in batches]
