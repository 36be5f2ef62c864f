"""What needs a GPU, in one run: ``make test-gpu``. Says what was skipped, and why; DGL is needed for some checks only.

layers       GraphSAGE's layer in plain torch on the GPU equals itself, and DGL's, on the CPU
copies       a batch arrives on the GPU as it was
by hand, ddp the ranks of lesson 05 and a GraphSAGE under DDP give the numbers of CPU ranks
fork         CUDA, then a fork: the error, what ``fork_safety`` said before it, and that spawn works
step time    CPU against GPU
train        ``train --device cuda`` against ``--device cpu``, in one process and on two machines
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutorial_lib.cluster.findings import FAIL, OK, SKIP, Finding
from tutorial_lib.models.plain_sage import CscBlock, PlainSAGEConv
from tutorial_lib.models.sage import GraphSAGE
from tutorial_lib.processes import spawn
from tutorial_lib.trainer.placement import CPU, Placement, dgl_runs_on

GPU = torch.device("cuda", 0)
TOLERANCE = 1e-5
FORK = """
import torch
from tutorial_lib.processes import fork, fork_safety
torch.zeros(1, device="cuda")
print("safe" if fork_safety().fork else "unsafe")
fork(lambda rank, world_size: torch.zeros(1, device="cuda").item(), 1, timeout=60)
"""


class Skipped(Exception):
    """A check that cannot be made here; the message says why."""


def need(there: object, why: str) -> None:
    """Skip the check unless ``there`` is true."""
    if not there:
        raise Skipped(why)


def need_gpus(count: int = 1) -> None:
    """Skip the check where torch cannot use so many GPUs."""
    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    need(have >= count, f"needs {count} GPU{'s' if count > 1 else ''}, torch finds {have}")


def need_dgl() -> None:
    """Skip the check where DGL is not installed."""
    need(importlib.util.find_spec("dgl"), "DGL is not installed")


def random_block(dst: int, src: int, edges: int, seed: int = 0, reached: int | None = None) -> CscBlock:
    """A block whose first ``reached`` destination nodes (None: all) have the edges."""
    generator = torch.Generator().manual_seed(seed)
    into = torch.randint(reached or dst, (edges,), generator=generator)
    indptr = torch.zeros(dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(into, minlength=dst).cumsum(0)
    return CscBlock(indptr, torch.randint(src, (edges,), generator=generator))


BLOCKS = {
    "random": (400, 1000, 3000),
    "empty neighbourhoods": (50, 80, 60, 2, 10),
    "isolated nodes only": (7, 9, 0),
    "one node": (1, 1, 1),
}


def outcome(layer: torch.nn.Module, block: Any, x: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Output and gradients of a layer, by name, on the CPU."""
    layer = layer.to(device)
    layer.zero_grad()
    x = x.to(device).detach().requires_grad_()
    y = layer(block, x)
    (y * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum().backward()
    found = {"y": y, "x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Over all tensors, as a share of the tensor's largest value where that is above 1."""
    return max(float((found[k] - b).abs().max() / b.abs().max().clamp(min=1)) for k, b in expected.items())


def check_layers() -> str:
    """Plain layer on the GPU against itself on the CPU."""
    need_gpus()
    worst = 0.0
    for shape in BLOCKS.values():
        for sizes in ((16, 32), (32, 16)):
            block, layer = random_block(*shape), PlainSAGEConv(*sizes)
            x = torch.randn(shape[1], sizes[0])
            expected = outcome(layer, block, x, CPU.device)
            moved = block.map(lambda tensor: tensor.to(GPU))
            worst = max(worst, largest_difference(outcome(layer, moved, x, GPU), expected))
    assert worst <= TOLERANCE, worst
    return f"{2 * len(BLOCKS)} blocks, forward and backward: largest difference {worst:.1e}"


def check_layers_of_dgl() -> str:
    """Plain layer (on the GPU where there is one) against DGL's on the CPU."""
    need_dgl()
    import dgl

    device = GPU if torch.cuda.is_available() else CPU.device
    worst = 0.0
    for shape in BLOCKS.values():
        block = random_block(*shape)
        into = torch.repeat_interleave(torch.arange(shape[0]), block.indptr.diff())
        theirs = dgl.create_block((block.indices, into), num_src_nodes=shape[1], num_dst_nodes=shape[0])
        native, plain = dgl.nn.SAGEConv(16, 32, "mean"), PlainSAGEConv(16, 32)
        plain.load_state_dict(native.state_dict())
        x = torch.randn(shape[1], 16)
        moved = block.map(lambda tensor: tensor.to(device))
        worst = max(worst, largest_difference(outcome(plain, moved, x, device), outcome(native, theirs, x, CPU.device)))
    assert worst <= TOLERANCE, worst
    return f"plain on {device.type}, DGL's on cpu: largest difference {worst:.1e}"


def check_native_layers() -> str:
    """DGL's own layers, where its build has CUDA."""
    need_dgl()
    need_gpus()
    need(dgl_runs_on(GPU), "this DGL is a CPU build; on a GPU the layers are plain torch")
    return "DGL can put a graph on the GPU; train --device cuda uses its layers"


def check_copies() -> str:
    """A batch, through pinned memory and on a stream of its own."""
    need_gpus()
    place = Placement(GPU, native=False)
    blocks = [random_block(50, 90, 300), random_block(10, 50, 80, 1)]
    for k in range(20):  # memory that is given back is used again
        x = torch.full((90, 100), float(k))
        moved, rows = place.take(blocks, x)
        assert rows.device == GPU
        assert torch.equal(rows.cpu(), x)
        for old, new in zip(blocks, moved, strict=True):
            assert torch.equal(old.indices, new.indices.cpu())
            assert torch.equal(old.indptr, new.indptr.cpu())
    return "20 batches arrived as they were"


def batch(size: int, seed: int = 0) -> tuple[list[CscBlock], Tensor, Tensor]:
    """Blocks of three hops as with fan-out 15,10,5 (outermost first), features and labels."""
    sizes = [size, 5 * size, 25 * size, 60 * size]
    blocks = [random_block(sizes[k], sizes[k + 1], sizes[k] * (5, 10, 15)[k], seed + k) for k in (2, 1, 0)]
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (size,), generator=generator)
    return blocks, torch.rand(sizes[3], 100, generator=generator), labels


def train_ranks(rank: int, world_size: int, devices: tuple[torch.device, ...]) -> list[float]:
    """Five steps of DDP over the ranks; the mean loss of each step over all ranks' batches."""
    import torch.distributed as dist

    place = Placement(devices[rank], native=False)
    torch.manual_seed(0)
    plain = GraphSAGE(100, 32, 10, dropout=0.0, plain=True).to(place.device)
    model = place.wrap(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        blocks, features, labels = batch(64, seed=10 * (step * world_size + rank))
        blocks, features, labels = place.take(blocks, features, labels)
        loss = F.cross_entropy(model(blocks, features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def check_ddp(ranks: int, backend: str) -> str:
    """GraphSAGE under DDP on GPUs against CPU ranks; with gloo, both ranks share one GPU."""
    need_gpus(ranks if backend == "nccl" else 1)
    devices = tuple(torch.device("cuda", rank if backend == "nccl" else 0) for rank in range(ranks))
    expected = spawn(train_ranks, ranks, ((CPU.device,) * ranks,), backend="gloo", timeout=200)[0]
    found = spawn(train_ranks, ranks, (devices,), backend=backend, timeout=200)[0]
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert worst < 1e-3, (found, expected)
    return f"{ranks} rank(s), {backend}: losses of 5 steps differ by at most {worst:.1e} from CPU ranks"


def check_by_hand(ranks: int) -> str:
    """Lesson 05: gradients averaged by hand."""
    need_gpus(ranks)
    from support.lessons.data_parallel import by_hand

    x, y = torch.randn(8, 2), torch.randn(8)
    results = []
    for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
        devices = tuple(torch.device("cpu") if device == "cpu" else torch.device("cuda", k) for k in range(ranks))
        results.append(spawn(by_hand, ranks, (devices, x, y, 3, "plain"), backend=backend, timeout=200))
    cpu, gpu = ({str(rank): held[-1]["weight after"] for rank, held in enumerate(result)} for result in results)
    assert largest_difference(gpu, cpu) < TOLERANCE
    return f"{ranks} rank(s): the weights of CPU ranks"


def run(*arguments: str) -> subprocess.CompletedProcess:
    """This Python, with what it says."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=400, check=False)


def check_fork() -> str:
    """CUDA in the parent, then a fork."""
    need_gpus()
    done = run("-c", FORK)
    assert done.returncode != 0
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stderr, done.stderr
    assert done.stdout.split()[:1] == ["unsafe"], done.stdout
    torch.zeros(1, device=GPU)
    spawn(train_ranks, 1, ((GPU,),), backend="nccl", timeout=200)
    return "fork_safety says no, the fork fails with PyTorch's message, spawn works"


def seconds_per_step(place: Placement, steps: int = 5) -> float:
    """Of 3 x 256 GraphSAGE with 1000 seeds: copy, forward, backward, update."""
    torch.manual_seed(0)
    model = GraphSAGE(100, 256, 47, plain=True).to(place.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    drawn = batch(1000)
    for step in range(steps + 1):
        if step == 1:  # the first one also loads kernels
            start = time.perf_counter()
        blocks, features, labels = place.take(drawn[0], *drawn[1:])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(blocks, features), labels)
        loss.backward()
        optimizer.step()
        loss.item()
    if place.on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def check_step_time_cpu() -> str:
    """What a step takes here without a GPU."""
    return f"{seconds_per_step(CPU):.3f} s on {torch.get_num_threads()} thread(s)"


def check_step_time_gpu() -> str:
    """What it takes with one."""
    need_gpus()
    return f"{seconds_per_step(Placement(GPU, native=False)):.4f} s on {torch.cuda.get_device_name(GPU)}"


def check_train(*where: str) -> str:
    """The command, on both devices."""
    need_dgl()
    need_gpus()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in ("cpu", "cuda"):
            out = Path(folder, device)
            options = ["--scale", "0.01", "--epochs", "5", "--root", f"{folder}/data", "--out", str(out)]
            done = run("-m", "tutorial_lib", "train", *where, "--device", device, *options)
            need("emulated machines" not in done.stderr, "this computer has no emulated machines")
            assert done.returncode == 0, done.stderr
            found[device] = json.loads((out / "result.json").read_text())
    assert found["cuda"]["device"] == "cuda"
    values = [found[device]["val_accuracy"] for device in ("cpu", "cuda")]
    assert abs(values[0] - values[1]) < 0.03, values
    return f"valid accuracy {values[0]:.3f} on cpu, {values[1]:.3f} on cuda; gradients over {found['cuda']['backend']}"


CHECKS: dict[str, Callable[[], str]] = {
    "layers": check_layers,
    "layers against DGL's": check_layers_of_dgl,
    "DGL's own layers": check_native_layers,
    "copies": check_copies,
    "ddp, 1 rank": lambda: check_ddp(1, "nccl"),
    "ddp, 2 ranks": lambda: check_ddp(2, "nccl"),
    "ddp, 2 ranks on one GPU": lambda: check_ddp(2, "gloo"),
    "by hand, 1 rank": lambda: check_by_hand(1),
    "by hand, 2 ranks": lambda: check_by_hand(2),
    "fork": check_fork,
    "step time, CPU": check_step_time_cpu,
    "step time, GPU": check_step_time_gpu,
    "train, one process": lambda: check_train("--single-process"),
    "train, two machines": lambda: check_train("--emulate", "2"),
}


def findings() -> Iterator[Finding]:
    """Each check as it is done."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, OK, check())
        except Skipped as why:
            yield Finding(name, SKIP, str(why))
        except Exception as error:
            yield Finding(name, FAIL, f"{type(error).__name__}: {error}")


def main() -> int:
    """Print all findings; 1 where one is a fail."""
    done = []
    for finding in findings():
        print(finding, flush=True)
        done.append(finding.status)
    print(f"{done.count(OK)} passed, {done.count(SKIP)} skipped, {done.count(FAIL)} failed")
    return int(FAIL in done)
