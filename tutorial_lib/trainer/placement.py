"""Devices of the model: the CPU, or GPUs that a CPU build of DGL can serve.

Sampling and feature pulls stay on the CPU. A batch for a GPU is copied through pinned memory on a side stream while the
GPU computes the backward pass of the previous batch, so the phase ``forward`` of a step includes the wait for the copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.errors import InputError
from tutorial_lib.models.graphsage import Block, CscBlock
from tutorial_lib.trainer.comm import all_gather, get_rank, is_single_process


def assign_gpus(requested: str, ranks: Sequence[tuple[str, int]]) -> tuple[Sequence[int | None], str, str]:
    """Return each rank's GPU (None is the CPU), the backend of the gradients, and the reason."""
    # ``ranks`` lists the computer of each rank and the number of its GPUs. Ranks that share a GPU cannot use NCCL.
    hosts = [host for host, _ in ranks]
    no_gpu = ", ".join(str(rank) for rank, (_, gpus) in enumerate(ranks) if gpus == 0)
    if requested not in ("auto", "cuda") or (requested == "cuda" and no_gpu):
        problem = f"the computer of rank {no_gpu} has no usable GPU" if requested == "cuda" else "unknown device"
        remedy = "Use --device cpu, cuda or auto (GPUs if each rank has one)."
        raise InputError(f"--device {requested}: {problem}", remedy)
    shortages = [f"{gpus} GPU(s) for {hosts.count(host)} rank(s)" for host, gpus in ranks if gpus < hosts.count(host)]
    if shortages and requested == "auto":
        return [None] * len(ranks), "gloo", shortages[0]
    gpus = [hosts[:rank].count(host) % gpus for rank, (host, gpus) in enumerate(ranks)]
    return (gpus, "gloo", f"{shortages[0]}, shared") if shortages else (gpus, "nccl", "each rank has its GPU")


@dataclass(frozen=True)
class Placement:
    """Device of this rank's model, and the process group of its gradients (None is the default group)."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 (it cannot be changed)
    backend: str = "none"  # in a single process, else "gloo" or "nccl"
    reason: str = "requested with --device"
    group: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def _side_stream(self) -> Any:
        return torch.cuda.Stream(self.device)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(model, [self.device] if self.on_gpu else None, process_group=self.group)

    def to_device(self, blocks: list[Block], *tensors: Tensor) -> tuple[Any, ...]:
        """Return blocks and tensors on the device. The copy may still run, and later work on the GPU waits for it."""
        if not self.on_gpu:
            return (blocks, *tensors)
        parts = [CscBlock.from_block(block) for block in blocks]
        flat = [*(tensor for block in parts for tensor in (block.indptr, block.indices)), *tensors]
        main = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side_stream):
            copies = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in flat]
        main.wait_stream(self._side_stream)
        for copy in copies:
            copy.record_stream(main)  # otherwise its memory could be reused while `main` still reads it
        moved = iter(copies)
        return ([CscBlock(next(moved), next(moved)) for _ in parts], *moved)

    def describe(self) -> dict[str, str]:
        return {"device": self.device.type, "backend": self.backend, "device_reason": self.reason}


CPU = Placement()


def choose_device(requested: str) -> Placement:
    """Return the device of this rank. All ranks of the process group, if there is one, call this."""
    if requested == "cpu":
        return Placement(backend="none" if is_single_process() else "gloo")
    computer = Path("/proc/sys/kernel/random/boot_id").read_text()  # equal on emulated machines and in containers
    gpus, backend, reason = assign_gpus(requested, all_gather((computer, torch.cuda.device_count())))
    gpu = gpus[get_rank()]
    backend = "none" if is_single_process() else backend
    if gpu is None:
        return Placement(backend=backend, reason=reason)
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    # Everything but the gradients is exchanged on the CPU and stays with the default group, gloo.
    return Placement(device, backend, reason, dist.new_group(backend="nccl") if backend == "nccl" else None)
