"""Lesson 5: the checker of the hook says what is wrong, the traffic of a rank is measured, and leave ends a rank."""

import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from solution_support import answer_tests, solutions

from support.exercises import lesson_05
from support.processes import bytes_sent, fork, limit_rate

half_precision = solutions("05").half_precision


def hook(convert, restore):
    """A hook that converts the buffer before the sum and the sum after it."""

    def run(_state, bucket):
        work = dist.all_reduce(convert(bucket.buffer()), async_op=True)
        return work.get_future().then(lambda future: restore(future.value()[0]))

    return run


def size():
    return dist.get_world_size()


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'Future'"),
    "float32": (hook(lambda sent: sent / size(), lambda total: total), r"kB(.|\n)*\[400, 400\]"),
    "a sum": (hook(lambda sent: sent.half(), lambda total: total.float()), "divide by the world size"),
    "divides afterwards": (hook(lambda sent: sent.half(), lambda total: total.float() / size()), "Divide before"),
    "divides twice": (hook(lambda sent: (sent / size()).half(), lambda total: total.float() / size()), "once"),
}
test_right_hook, test_wrong_hook = answer_tests(lesson_05.check_half_precision, [half_precision], WRONG)


def test_the_traffic_of_a_rank():
    def run(rank, _size):
        numbers = torch.ones(250_000)  # 1 MB
        limit_rate(80)
        before, start = bytes_sent(), time.perf_counter()
        dist.all_reduce(numbers)
        dist.barrier()
        return (bytes_sent() - before) / 1e6, time.perf_counter() - start

    for megabytes, seconds in fork(run, 2, backend="gloo", threads=1, timeout=60):
        assert megabytes == pytest.approx(1, abs=0.02)
        assert seconds > 0.08  # 0.1 without the first burst


@pytest.mark.parametrize(
    ("backend", "expected"),
    {
        "gloo": ["barrier", "exit 0"],
        "nccl": ["barrier", "destroy", "exit 0"],
        "cpu:gloo,cuda:nccl": ["barrier", "keep cpu", "destroy", "exit 0"],
    }.items(),
)
def test_leave_destroys_nccl_and_never_gloo(backend, expected, monkeypatch):
    """Which calls it makes: no GPU is needed to see that."""
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
