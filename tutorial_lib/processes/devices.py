"""Which device, how many threads and which backend: decided once, then the same code runs on CPUs and GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DevicePlan:
    """Where the ranks of one machine run.

    Attributes:
        devices: of rank 0, 1, ...
        threads: OpenMP threads of each rank.
        backend: of the process group, "gloo" or "nccl".
        reason: why it was planned like this.
    """

    devices: tuple[torch.device, ...]
    threads: int
    backend: str
    reason: str

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    def __str__(self) -> str:
        where = ", ".join(f"rank {rank} on {device}" for rank, device in enumerate(self.devices))
        return f"{where}; {self.threads} thread(s) each; backend {self.backend} ({self.reason})"


def device_plan(ranks: int, device: str = "auto", *, gpus: int | None = None, cpus: int | None = None) -> DevicePlan:
    """Plan the ranks of this machine: all on the CPU with its cores divided, or each on a GPU of its own.

    Args:
        ranks: at least 1.
        device: "cpu"; "cuda"; "auto" takes GPUs where there is one for each rank, else the CPU.
        gpus: how many GPUs to count with; None asks torch. (In torch 2.2 that asks the driver's management
            library and starts no CUDA context; where that library is missing it does, see ``fork_safety``.)
        cpus: how many CPUs to divide; None: those that this process may use.

    Raises:
        InputError: more ranks than GPUs were asked for on GPUs, or NCCL is missing.

    The choice was tested with counts given; a plan with GPUs was not run on one.
    """
    import torch
    import torch.distributed as dist

    if not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"ranks must be a whole number of at least 1, it is {ranks!r}")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, it is {device!r}")
    cpus = len(os.sched_getaffinity(0)) if cpus is None else cpus
    threads = max(1, cpus // ranks)
    have = 0 if device == "cpu" else torch.cuda.device_count() if gpus is None else gpus
    counted = f"{have} GPU{'' if have == 1 else 's'}"
    if device == "cuda" and have < ranks:
        raise InputError(f"{ranks} ranks asked for, but this machine has {counted}", _remedy(have))
    if device == "cpu" or have < ranks:
        reason = "asked for" if device == "cpu" else "no GPU" if not have else f"{counted} for {ranks} ranks"
        share = f", {ranks} ranks share {cpus} CPUs" if ranks > 1 else ""
        return DevicePlan((torch.device("cpu"),) * ranks, threads, "gloo", reason + share)
    if gpus is None and not dist.is_nccl_available():
        raise InputError("this torch has no NCCL, through which ranks on GPUs talk", 'Take device="cpu".')
    devices = tuple(torch.device("cuda", rank) for rank in range(ranks))
    return DevicePlan(devices, threads, "nccl", f"{counted}, one for each rank")


def _remedy(gpus: int) -> str:
    fewer = f"Start {gpus} rank{'' if gpus == 1 else 's'}, or t" if gpus else "T"
    return (
        f'{fewer}ake device="cpu". NCCL refuses two ranks on one GPU ("Duplicate GPU detected"); they would also '
        "share its memory and gain no speed."
    )
