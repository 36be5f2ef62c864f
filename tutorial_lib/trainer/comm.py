"""Collectives over the ranks of a job. A process without a process group is rank 0 of one.

The object collectives of torch pickle Python values. A rank trusts the other ranks as much as DGL's servers, which also
send pickles, see SECURITY.md. Send tensors from the CPU, and clone views, which are pickled with their whole base.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.errors import InputError

Value = TypeVar("Value")


def is_single_process() -> bool:
    return not dist.is_initialized()


def get_rank() -> int:
    return 0 if is_single_process() else dist.get_rank()


def barrier() -> None:
    if not is_single_process():
        dist.barrier()


def gather(value: Value) -> list[Value]:
    """Return the values of all ranks in their order on rank 0, and an empty list on the other ranks."""
    if is_single_process():
        return [value]
    values = [value] * dist.get_world_size() if get_rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def all_gather(value: Value) -> list[Value]:
    """Return the values of all ranks in rank order on every rank."""
    values = [value] * (1 if is_single_process() else dist.get_world_size())
    if not is_single_process():
        dist.all_gather_object(values, value)
    return values


def broadcast(value: Value | None) -> Value:
    """Return the value of rank 0 on every rank. The values of the other ranks are ignored."""
    values = [value]
    if not is_single_process():
        dist.broadcast_object_list(values, src=0)
    return values[0]  # type: ignore[return-value]


def gather_by_original_id(ids: Tensor, values: Tensor, original_ids: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return on rank 0 the original IDs of all ranks in ascending order, and the value of each ID."""
    parts = gather((ids.cpu().clone(), values.cpu().clone())) or [(ids[:0], values[:0])]
    ids, values = (torch.cat([part[k] for part in parts]) for k in (0, 1))
    gathered_ids = torch.from_numpy(np.asarray(original_ids[ids.numpy()], dtype=np.int64))
    order = gathered_ids.argsort()
    return gathered_ids[order], values[order]


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sum of each number over all ranks, computed in double precision."""
    total = torch.tensor(values, dtype=torch.float64)
    if not is_single_process():
        dist.all_reduce(total)
    return total.tolist()


def any_rank(flag: bool) -> bool:
    """Return on every rank whether the flag of at least one rank is true."""
    return sum_over_ranks([flag])[0] > 0


def equal_steps(examples: int, batch_size: int, noun: str = "training nodes") -> int:
    """Return the number of steps of an epoch on all ranks. Batches are larger only if a rank has too few examples."""
    counts = all_gather(examples)
    if 0 in counts:
        text = f"rank {counts.index(0)} of {len(counts)} has no {noun}, and every rank needs at least one for each step"
        raise InputError(text, f"Use fewer machines or trainers, or a data set with more {noun}.")
    return min(-(-max(counts) // batch_size), min(counts))


def mean_or_nan(total: float, count: float) -> float:
    return total / count if count else float("nan")
