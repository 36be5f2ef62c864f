"""Checker of lesson 5: DDP on real ranks calls the learner's communication hook."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.exercises import exercise, expect, expect_type
from support.processes import bytes_sent, fork


def run_hook(hook: Callable[..., Any], gradients: list[float], size: int) -> list[tuple[float, int]]:
    """Return the mean gradient and the bytes sent on each rank, if rank k has the k-th gradient before the hook."""

    def checked(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        expect_type("type of the result", future, "Future", "return work.get_future().then(...)")  # DDP would crash
        return future

    def run(rank: int, _size: int) -> tuple[float, int]:
        model = DistributedDataParallel(nn.Linear(size, 1, bias=False))
        model.register_comm_hook(None, checked)
        loss = model(torch.full((1, size), gradients[rank])).sum()
        dist.barrier()  # the parameters of rank 0 have arrived everywhere
        before = bytes_sent()
        loss.backward()
        dist.barrier()  # all bytes have been sent
        return model.module.weight.grad.mean().item(), bytes_sent() - before

    return fork(run, len(gradients), backend="gloo", threads=1, timeout=60, echo=False)


@exercise(1)
def check_half_precision(hook: Callable[..., Any]) -> None:
    """Exercise 1: a communication hook sends float16, and returns the mean."""
    ranks = run_hook(hook, [1.0, 2.0, 6.0], 8)
    hint = "Divide by the world size once."
    expect("gradients of three ranks with 1, 2 and 6", [round(mean, 2) for mean, _ in ranks], [3.0] * 3, hint)
    ranks = run_hook(hook, [6e4, 6e4], 100_000)
    hint = "The largest float16 is 65,504. Divide before the sum."
    expect("two gradients of 60,000", [round(mean, -3) for mean, _ in ranks], [6e4, 6e4], hint)
    hint = "Convert the buffer with .half() before the all-reduce."
    expect("kB that each rank sends for 100,000 gradients", [sent // 10_000 * 10 for _, sent in ranks], [200] * 2, hint)
