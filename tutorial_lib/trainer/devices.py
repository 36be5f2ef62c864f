"""Which device and which backend each rank gets: decided once, then the same code runs on CPUs and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tutorial_lib.errors import InputError

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
