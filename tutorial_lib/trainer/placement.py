"""Where a model computes: the CPU, or GPUs that a CPU build of DGL can serve.

Sampling and feature pulls stay on the CPU, where DistDGL does them in any case. With a GPU, a batch is then copied to
it through pinned memory, on a stream of its own: sampling, pull and copy of a batch happen while the GPU is still busy
with the backward pass of the batch before. (So ``forward`` in the phases of a step also holds the wait for that.)
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.errors import InputError
from tutorial_lib.models.graphsage import CscBlock, GraphSAGE
from tutorial_lib.trainer.comm import all_gather, alone, own_rank

REMEDY = "Take --device cpu, or auto, which takes GPUs only where each rank has one of its own."


@dataclass(frozen=True)
class Assignment:
    """What one rank gets: the number of its GPU (None: the CPU), the backend of the gradients, and why."""

    gpu: int | None
    backend: str
    reason: str


def assign(wanted: str, ranks: Sequence[tuple[str, int]], *, nccl: bool = True) -> list[Assignment]:
    """Give each rank of a job its device; every rank gets the same backend.

    Args:
        wanted: "cpu"; "cuda"; "auto": GPUs where every rank has one of its own, else the CPU.
        ranks: in rank order, the computer that the rank runs on (emulated machines share one) and its number of GPUs.
        nccl: whether torch has NCCL. It needs one GPU for each rank; ranks that share one exchange gradients over gloo.

    Raises:
        InputError: no such device, or "cuda" and a rank's computer has no GPU.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device must be auto, cpu or cuda, it is {wanted!r}")
    if wanted == "cpu":
        return [Assignment(None, "gloo", "asked for")] * len(ranks)
    wants = Counter(computer for computer, _ in ranks)
    without = [rank for rank, (_, gpus) in enumerate(ranks) if gpus == 0]
    short = [f"{_many(gpus, 'GPU')} for {_many(wants[name], 'rank')}" for name, gpus in ranks if gpus < wants[name]]
    if wanted == "cuda" and without:
        who = "" if len(ranks) == 1 else f" of rank {', '.join(map(str, without))}"
        raise InputError(f"--device cuda, but the computer{who} has no GPU that torch can use", REMEDY)
    if short and wanted == "auto":
        return [Assignment(None, "gloo", "no GPU" if without else short[0])] * len(ranks)
    backend = "nccl" if nccl and not short else "gloo"
    reason = f"{short[0]}: they share" if short else "each rank has its GPU" if nccl else "this torch has no NCCL"
    numbers = defaultdict[str, Iterator[int]](itertools.count)
    return [Assignment(next(numbers[computer]) % gpus, backend, reason) for computer, gpus in ranks]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def gpu_count() -> int:
    """GPUs that torch can use here; starts no CUDA context where the driver's management library is there."""
    return torch.cuda.device_count() if torch.version.cuda is not None else 0


@dataclass(frozen=True)
class Placement:
    """Where this rank's model computes.

    Attributes:
        backend: of the gradients: "gloo", "nccl", or "none" in a single process.
        reason: why it is so, for people.
        group: process group of the gradients; None is the default one.
    """

    device: torch.device = torch.device("cpu")  # noqa: RUF009 (it cannot be changed)
    backend: str = "none"
    reason: str = "asked for"
    group: Any = field(default=None, repr=False)

    @property
    def on_gpu(self) -> bool:
        """Whether anything has to be moved."""
        return self.device.type == "cuda"

    def model(self, config: Any, in_size: int, num_classes: int) -> GraphSAGE:
        """``config.model`` on this device, with the same first weights as anywhere."""
        return config.model(in_size, num_classes).to(self.device)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """DDP over the ranks of the job."""
        ids = [self.device] if self.on_gpu else None
        return DistributedDataParallel(model, device_ids=ids, process_group=self.group)

    def take(self, blocks: list[Any], *tensors: Tensor) -> tuple[Any, ...]:
        """Blocks and tensors of a batch on the device; on the CPU, the very same objects. The copy may still run."""
        if not self.on_gpu:
            return (blocks, *tensors)
        parts = [CscBlock.of(block) for block in blocks]
        flat = [tensor for block in parts for tensor in (block.indptr, block.indices)]
        moved = iter(self._copy([*flat, *tensors]))
        blocks = [block.map(lambda _old: next(moved)) for block in parts]
        return (blocks, *moved)

    def _copy(self, tensors: list[Tensor]) -> list[Tensor]:
        """From pinned memory, beside what the GPU is doing; work that is handed in later waits for it."""
        main, side = torch.cuda.current_stream(self.device), _side_stream(self.device)
        with torch.cuda.stream(side):
            copies = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in tensors]
        main.wait_stream(side)
        for copy in copies:
            copy.record_stream(main)  # else its memory could be given away while `main` still reads it
        return copies

    def describe(self) -> dict[str, str]:
        """For ``result.json``."""
        return {"device": self.device.type, "backend": self.backend, "device_reason": self.reason}


CPU = Placement()


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


def settle(wanted: str) -> Placement:
    """Agree with all ranks of the default process group (without one: alone) on who computes where.

    Raises:
        InputError: on every rank alike, see ``assign``.
    """
    if wanted == "cpu":
        return Placement(backend="none" if alone() else "gloo")
    # Equal for all emulated machines and containers of one computer, until it is started anew.
    boot = Path("/proc/sys/kernel/random/boot_id")
    computer = boot.read_text() if boot.exists() else "unknown"
    everybody = all_gather((computer, gpu_count(), dist.is_nccl_available()))
    ranks = [(computer, gpus) for computer, gpus, _nccl in everybody]
    mine = assign(wanted, ranks, nccl=all(nccl for _computer, _gpus, nccl in everybody))[own_rank()]
    backend = "none" if alone() else mine.backend
    if mine.gpu is None:
        return Placement(backend=backend, reason=mine.reason)
    device = torch.device("cuda", mine.gpu)
    torch.cuda.set_device(device)
    # Everything else that ranks tell each other is on the CPU and stays with the default group, gloo.
    group = dist.new_group(backend="nccl") if backend == "nccl" else None
    return Placement(device, backend, mine.reason, group)
