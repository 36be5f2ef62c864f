"""Lesson 5: the checkers accept a right answer and say what is wrong with a wrong one."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from program_support import changed, run, written
from solution_support import answer_tests, assert_not_yet, solutions, verdict
from torch import Tensor

from support.exercises import lesson_05

share_of = solutions("05").share_of
AVERAGE, HOOK = (written("05", f"exercise_05_{number}.py") for number in (1, 3))
SCALE = "        parameter.grad *= examples\n"


Program = tuple[str, str, list[tuple[str, str]], int]


@pytest.fixture
def ran(scripts: Path) -> Callable[[Program], tuple[str]]:
    """Run a changed program on a number of ranks."""

    def run_changed(answer: Program) -> tuple[str]:
        name, source, changes, ranks = answer
        return (str(run(scripts, name, changed(source, *changes), ranks)),)

    return run_changed


def by_hand(*changes: tuple[str, str], ranks: int = 3) -> Program:
    return "exercise_05_1.py", AVERAGE, list(changes), ranks


def hook(*changes: tuple[str, str]) -> Program:
    return "exercise_05_3.py", HOOK, list(changes), 3


AVERAGES = {
    "plain mean": (
        by_hand((SCALE, ""), ("/= total", "/= dist.get_world_size()")),
        r"largest difference(.|\n)*0\.0\d+",
    ),
    "a sum": (by_hand(("        parameter.grad /= total\n", "")), "largest difference"),
    "own examples": (by_hand(("    dist.all_reduce(total)\n", "")), "largest difference"),
    "not averaged": (by_hand(("        dist.all_reduce(parameter.grad)\n", "")), "largest difference"),
    "two ranks": (by_hand(ranks=2), "got       2\n  expected  3"),
}
HOOKS = {
    "the default hook": (hook(("hook=add_only", "hook=None")), r"largest difference(.|\n)*divide by nothing"),
    "divides": (hook(("bucket.buffer(), async", "bucket.buffer().div_(3), async")), "largest difference"),
    "an error": (hook(("work.get_future()", "work.no_such_thing()")), "has written a result\n  got       False"),
}
test_right_average, test_wrong_average = map(
    pytest.mark.whole_run, answer_tests(lesson_05.check_average_gradients, [by_hand()], AVERAGES, "ran")
)
test_right_hook, test_wrong_hook = map(
    pytest.mark.whole_run, answer_tests(lesson_05.check_hook, [hook()], HOOKS, "ran")
)


@pytest.mark.whole_run
def test_a_result_older_than_its_program_and_no_program(scripts, capsys):
    program = run(scripts, "exercise_05_1.py", AVERAGE, 3, torchrun=True)
    assert verdict(capsys, lesson_05.check_average_gradients, str(program)) == "Exercise 1: correct\n"
    program.touch()  # as if it had been changed since
    said = verdict(capsys, lesson_05.check_average_gradients, str(program))
    assert_not_yet(said, "has written a result\n  got       False")
    program.unlink()
    assert_not_yet(verdict(capsys, lesson_05.check_average_gradients, str(program)), "is there\n  got       False")


def contiguous(batch: Tensor, rank: int, world_size: int, pad: bool) -> tuple[Tensor, float]:
    if pad:
        return share_of(batch, rank, world_size, pad)
    ids = batch.tensor_split(world_size)[rank]
    return ids, torch.tensor(len(ids) * world_size / len(batch), dtype=torch.float64)  # type: ignore[return-value]


def remainder_to_the_last(batch: Tensor, rank: int, world_size: int, _pad: bool) -> tuple[Tensor, float]:
    size = len(batch) // world_size
    ids = batch[rank * size :] if rank == world_size - 1 else batch[rank * size : (rank + 1) * size]
    return ids, len(ids) * world_size / len(batch)


def padded_with_the_last(batch: Tensor, rank: int, world_size: int, pad: bool) -> tuple[Tensor, float]:
    if not pad:
        return share_of(batch, rank, world_size, pad)
    size = -(-len(batch) // world_size)
    return batch[torch.arange(rank, size * world_size, world_size).clamp(max=len(batch) - 1)], 1.0


WRONG_SHARES = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    "one thing": (lambda *a: share_of(*a)[:1], "type of what rank 0 gets\n  got       'tuple of 1'"),
    "a list": (lambda *a: (share_of(*a)[0].tolist(), 1.0), "first item of rank 0\n  got       'list'"),
    "remainder lost": (
        lambda b, r, w, _p: (b[r * (len(b) // w) :][: len(b) // w], 1.0),
        r"10 ids over 4 ranks(.|\n)*tensor \(8,\)(.|\n)*tensor \(10,\)",
    ),
    "remainder to one": (remainder_to_the_last, "10 ids over 4 ranks.*largest(.|\n)*got       2\n  expected  1"),
    "no factor": (lambda *a: (share_of(*a)[0], 1.0), r"factors of shares of \[3, 3, 2, 2\](.|\n)*expected  \[1.2, "),
    "never padded": (lambda b, r, w, _p: share_of(b, r, w, False), r"pad=True: sizes of the shares"),
    "padded with the last": (padded_with_the_last, "what is missing comes from the front"),
}


test_right_share, test_wrong_share = answer_tests(lesson_05.check_share_of, [share_of, contiguous], WRONG_SHARES)


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
