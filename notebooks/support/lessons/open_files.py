"""Lesson 7: batches of a DataLoader's workers hold a file each, open or in shared memory."""

# ruff: noqa: ARG001 (each rank function is called as fn(rank, world_size, ...), whether it needs them or not)

from __future__ import annotations

import os
import resource
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def keep_batches(rank: int, world_size: int, strategy: str, room: int, copy: bool = False) -> Any:
    """Keep every batch of a DataLoader with a worker process, with room for a few more open files.

    Returns:
        After each batch: by how many the open files of this process have grown, and the names in /dev/shm that the
        worker has given to tensors. Or the error.
    """
    mp.set_sharing_strategy(strategy)
    files = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files + room, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept, seen = [], []
    try:
        for batch in DataLoader(torch.arange(240), batch_size=2, num_workers=1):
            kept.append(batch.clone() if copy else batch)
            seen.append((len(os.listdir("/proc/self/fd")) - files, names_of(mp.active_children())))
    except (RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return seen


def names_of(workers: list[Any]) -> list[str]:
    """Names in /dev/shm that torch has given to tensors of these processes."""
    starts = tuple(f"torch_{worker.pid}_" for worker in workers)
    return [name for name in os.listdir("/dev/shm") if name.startswith(starts)]


def still_named(names: list[str], seconds: float = 5.0) -> list[str]:
    """Those that are still in /dev/shm; waits a moment for them to go."""
    end = time.monotonic() + seconds
    while (left := [name for name in names if os.path.exists(f"/dev/shm/{name}")]) and time.monotonic() < end:
        time.sleep(0.05)
    return left
