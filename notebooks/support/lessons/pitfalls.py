"""Lesson 7: what spawned ranks do in the pitfall lab: they cannot load a function of a cell. Needs no DGL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any
from unittest import mock

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from support.lessons.attempts import stderr_of_children
from tutorial_lib.processes import fork

mp: Any = torch.multiprocessing  # its hints lack spawn

# ---- OpenMP and CUDA after a fork


def parallel_sum(rank: int, world_size: int) -> float:
    """A sum that torch divides over its OpenMP threads."""
    return float((torch.ones(2_000_000) + 1).sum())


def sum_on_one_thread(rank: int, world_size: int) -> float:
    """The same; with one thread, OpenMP needs no workers."""
    torch.set_num_threads(1)
    return parallel_sum(rank, world_size)


def in_a_fork(call: Callable[[], str]) -> str:
    """What a function returns in a copy of this process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, call().encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


def use_cuda() -> str:
    """Make a tensor on the GPU; the error where that fails."""
    try:
        torch.zeros(1, device="cuda")
        return "works"
    except (RuntimeError, AssertionError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def calls_before_a_fork() -> dict[str, tuple[Callable[[], Any], list[Any]]]:
    """What a program may call before it forks, each with the settings that it is called under."""
    answers = mock.patch("torch.cuda._device_count_nvml", return_value=2)  # as if NVML saw two GPUs
    missing = mock.patch("torch.cuda._device_count_nvml", return_value=-1)
    ask_nvml = mock.patch.dict(os.environ, PYTORCH_NVML_BASED_CUDA_CHECK="1")
    return {
        "import torch": (lambda: None, []),
        "torch.cuda.is_initialized()": (torch.cuda.is_initialized, []),
        "torch.cuda.manual_seed_all(0)": (lambda: torch.cuda.manual_seed_all(0), []),
        "torch.cuda.device_count(), NVML answers": (torch.cuda.device_count, [answers]),
        "torch.cuda.device_count(), no NVML": (torch.cuda.device_count, [missing]),
        "torch.cuda.is_available()": (torch.cuda.is_available, []),
        "torch.cuda.is_available(), told to ask NVML": (torch.cuda.is_available, [answers, ask_nvml]),
        "torch.cuda.get_device_name(0)": (lambda: torch.cuda.get_device_name(0), []),
        'torch.zeros(1, device="cuda")': (lambda: torch.zeros(1, device="cuda"), []),
    }


def cuda_after_each(rank: int, world_size: int) -> list[tuple[str, str, str]]:
    """For each of the calls, in a fresh copy of this process: is CUDA initialised, and what does a fork of it get?"""

    def look(call: Callable[[], Any], settings: list[Any]) -> str:
        with contextlib.ExitStack() as stack, contextlib.suppress(RuntimeError, AssertionError):
            for setting in settings:
                stack.enter_context(setting)
            call()
        return f"{torch.cuda.is_initialized()}|{in_a_fork(use_cuda)}"

    answers = {name: in_a_fork(lambda task=task: look(*task)) for name, task in calls_before_a_fork().items()}
    return [(name, answer.split("|")[0], answer.split("|", 1)[1]) for name, answer in answers.items()]


# ---- spawn


def who(rank: int, world_size: int, *anything: Any) -> str:
    """Anything that a spawned process can import."""
    return f"rank {rank} of {world_size}"


def spawn_by_torch(fn: Callable[[int], Any]) -> tuple[str, list[str]]:
    """What ``mp.spawn`` raises in the parent, and the lines that the child writes to standard error.

    In a rank in between, which ends with the notebook. The tracker, started first, removes ``mp.spawn``'s semaphores
    even if that rank is killed.
    """
    resource_tracker.ensure_running()
    return fork(_spawn_by_torch, 1, (fn,), threads=1, timeout=60)[0]


def _spawn_by_torch(rank: int, world_size: int, fn: Callable[[int], Any]) -> tuple[str, list[str]]:
    with stderr_of_children() as lines:
        try:
            mp.spawn(fn, nprocs=1)
            told = "no error"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
    return told, lines


# ---- seeds


def start_and_drop(rank: int, world_size: int, seed: int | None, by_rank: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A model's weights before and after DDP has wrapped it, and which of 120 values a dropout keeps."""
    if seed is not None:
        torch.manual_seed(seed + rank if by_rank else seed)
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    DistributedDataParallel(model)
    kept = F.dropout(torch.ones(6, 20), 0.5) > 0
    return before, model.weight.detach(), kept
