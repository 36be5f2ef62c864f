"""Lesson 5: the checker explains wrong hooks, the traffic is measured, and leave ends a rank."""

import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from solution_support import answer_tests, solutions

from support.exercises import lesson_05
from support.processes import bytes_sent, fork, limit_rate


def hook(convert, restore):
    """A hook that converts the buffer before the sum and the sum after it."""
    start = lambda bucket: dist.all_reduce(convert(bucket.buffer()), async_op=True).get_future()  # noqa: E731
    return lambda _state, bucket: start(bucket).then(lambda future: restore(future.value()[0]))


def mean(tensor):
    return tensor.float() / dist.get_world_size()


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'Future'"),
    "float32": (hook(mean, torch.Tensor.float), r"kB(.|\n)*\[400, 400\]"),
    "a sum": (hook(torch.Tensor.half, torch.Tensor.float), "Divide by the world size"),
    "divides afterwards": (hook(torch.Tensor.half, mean), "Divide before"),
    "divides twice": (hook(lambda sent: mean(sent).half(), mean), "once"),
}
test_right_hook, test_wrong_hook = answer_tests(lesson_05.check_half_precision, [solutions("05").half_precision], WRONG)


def test_the_traffic_of_a_rank():
    def run(_rank, _size):
        limit_rate(80)
        before, start = bytes_sent(), time.perf_counter()
        dist.all_reduce(torch.ones(250_000))  # 1 MB
        dist.barrier()
        return (bytes_sent() - before) / 1e6, time.perf_counter() - start

    for megabytes, seconds in fork(run, 2, backend="gloo", threads=1, timeout=60):
        assert (megabytes, seconds > 0.08) == (pytest.approx(1, abs=0.02), True)  # 0.1 s without the first burst


@pytest.mark.parametrize(
    ("backend", "expected"),
    {
        "gloo": ["barrier", "exit 0"],
        "nccl": ["barrier", "destroy", "exit 0"],
        "cpu:gloo,cuda:nccl": ["barrier", "keep cpu", "destroy", "exit 0"],
    }.items(),
)
def test_leave_destroys_nccl_and_never_gloo(backend, expected, monkeypatch):
    from scripts.leave import leave

    calls: list[str] = []
    world = SimpleNamespace(_get_backend=lambda device: calls.append(f"keep {device}"))
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=world))
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist, "barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    monkeypatch.setattr(os, "_exit", lambda code: calls.append(f"exit {code}"))
    leave()
    assert calls == expected
