"""Lesson 7: what each rank does in the pitfall lab, and how its errors are shown.

A spawned rank cannot load a function of a notebook cell, so the functions of the ranks are here. Needs no DGL.
"""

# ruff: noqa: ARG001 (each rank function is called as fn(rank, world_size, ...), whether it needs them or not)

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import resource_tracker
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from support.lessons.attempts import attempt, plain, run_script, stderr_of_children
from support.lessons.open_files import keep_batches, names_of, still_named
from tutorial_lib.processes import fix_openmp, fork

# The notebook knows all by the name of this module.
__all__ = ["attempt", "keep_batches", "names_of", "plain", "run_script", "stderr_of_children", "still_named"]

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
    return [(name, *answer.split("|", 1)) for name, answer in answers.items()]


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


# ---- uneven batches


def targets_of(rank: int) -> list[float]:
    """Rank 0 has three batches, rank 1 has five, each with one example: x is 1 and y is the target."""
    return ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 8.0])[rank]


def train_uneven(
    rank: int, world_size: int, devices: tuple[torch.device, ...], way: str, options: dict[str, bool] | None = None
) -> float:
    """Fit y = w x with one weight. Way "Join": the loop is under Join. "sum": a sum over the ranks after the loop."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False).to(devices[rank]))
    torch.nn.init.zeros_(model.module.weight)
    with Join([model], **options or {}) if way == "Join" else contextlib.nullcontext():
        for target in targets_of(rank):
            loss = (model(torch.ones(1, 1, device=devices[rank])) - target).square().mean()
            model.zero_grad()
            loss.backward()
            model.module.weight.data -= 0.25 * model.module.weight.grad
    if way == "sum":
        seen = torch.tensor(float(len(targets_of(rank))), device=devices[rank])
        dist.all_reduce(seen)
        print(f"batches of both ranks: {seen.item():g}")
    return model.module.weight.item()


def train_or_say(rank: int, world_size: int, devices: tuple[torch.device, ...], options: dict[str, bool]) -> Any:
    """Train under Join; the message where that fails."""
    try:
        return train_uneven(rank, world_size, devices, "Join", options)
    except RuntimeError as error:
        return str(error)


# ---- the port


def meet(rank: int, world_size: int, port: int, number: float) -> float | str:
    """Make a process group at a fixed port, as DGL's tutorials do; sum a number over its ranks."""
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # rank 0 is to open the port itself
    address = f"tcp://127.0.0.1:{port}"
    try:
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    except RuntimeError as error:
        return f"{type(error).__name__}: {plain(str(error))}"
    total = torch.tensor(number)
    dist.all_reduce(total)
    return total.item()


def meet_strangers(rank: int, world_size: int, port: int) -> float | str:
    """Rank 0 belongs to a job that sums ones, rank 1 to a job that sums thousands. Both were given the same port."""
    return meet(rank, world_size, port, [1.0, 1000.0][rank])


def sum_of_ones(rank: int, world_size: int) -> float:
    """In the process group that is there already."""
    total = torch.ones(())
    dist.all_reduce(total)
    return total.item()


# ---- threads


@fix_openmp
def steps_per_second(rank: int, world_size: int, threads: int, seconds: float) -> float:
    """Training steps of a small model that this rank does per second, with so many OpenMP threads."""
    torch.set_num_threads(threads)
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.ReLU(), torch.nn.Linear(400, 40))
    batch = torch.rand(400, 400)
    model(batch).sum().backward()
    dist.barrier()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        model(batch).sum().backward()
        steps += 1
    return steps / (time.perf_counter() - start)


# ---- a rank that dies


def die(how: str) -> NoReturn:
    """End this process without a word."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does when memory runs out
    os._exit(3)


def lose_rank_1(rank: int, world_size: int, how: str) -> None:
    """Rank 1 dies while rank 0 waits for it."""
    if rank == 1:
        print("rank 1 is about to die")
        die(how)
    dist.barrier()


def member(rank: int, port: int, how: str, told: Any) -> None:
    """One of two plain processes. Rank 1 dies or is late; rank 0 waits for a number from it."""
    store = dist.TCPStore("127.0.0.1", port, 2, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        time.sleep(2.5 if how == "late" else 0.3)
        if how != "late":
            die(how)
        return
    try:
        dist.irecv(torch.zeros(1), src=1).wait(timedelta(seconds=1 if how == "late" else 30))
    except RuntimeError as error:
        told.put(plain(str(error)))


def plain_pair(rank: int, world_size: int, how: str) -> tuple[str, list[int | None]]:
    """``mp.Process``, ``start``, ``join``, as in DGL's tutorial. What rank 0 was told, and both exit codes."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    told = mp.get_context("fork").SimpleQueue()
    pair = [mp.get_context("fork").Process(target=member, args=(k, store.port, how, told)) for k in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    return "nothing" if told.empty() else told.get(), [process.exitcode for process in pair]


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


def average_by_hand(rank: int, world_size: int, broadcast: bool) -> Tensor:
    """Four steps without DDP: own seeds, gradients averaged. The weights at the end."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 1)
    if broadcast:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    for step in range(4):
        model.zero_grad()
        model(batch_of(rank, step)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.1 * parameter.grad / world_size
    return model.weight.detach()


def batch_of(rank: int, step: int) -> Tensor:
    """The same numbers in every process: (4, 3)."""
    return torch.rand(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
