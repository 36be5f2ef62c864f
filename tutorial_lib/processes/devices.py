"""Which device, how many threads and which backend: decided once, then the same code runs on CPUs and GPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tutorial_lib.errors import InputError

if TYPE_CHECKING:
    import torch


DEVICES = ("auto", "cpu", "cuda")
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
    if wanted not in DEVICES:
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
    taken: Counter[str] = Counter()
    given = []
    for computer, gpus in ranks:
        given.append(Assignment(taken[computer] % gpus, backend, reason))
        taken[computer] += 1
    return given


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
    cpus = len(os.sched_getaffinity(0)) if cpus is None else cpus
    have = 0 if device == "cpu" else torch.cuda.device_count() if gpus is None else gpus
    if device == "cuda" and have < ranks:
        fewer = f"Start {_many(have, 'rank')}, or t" if have else "T"
        raise InputError(
            f"{ranks} ranks asked for, but this machine has {_many(have, 'GPU')}",
            f'{fewer}ake device="cpu". NCCL refuses two ranks on one GPU ("Duplicate GPU detected"); they would also '
            "share its memory and gain no speed.",
        )
    given = assign(device, [("here", have)] * ranks, nccl=gpus is not None or dist.is_nccl_available())
    threads = max(1, cpus // ranks)
    if given[0].gpu is None:
        share = f", {ranks} ranks share {cpus} CPUs" if ranks > 1 else ""
        return DevicePlan((torch.device("cpu"),) * ranks, threads, "gloo", given[0].reason + share)
    if given[0].backend != "nccl":
        raise InputError("this torch has no NCCL, through which ranks on GPUs talk", 'Take device="cpu".')
    devices = tuple(torch.device(f"cuda:{one.gpu}") for one in given)
    return DevicePlan(devices, threads, "nccl", f"{_many(have, 'GPU')}, one for each rank")
