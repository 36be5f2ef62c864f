"""Lesson 5: the checkers accept a right answer and say what is wrong with a wrong one; its programs agree."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from program_support import changed, run, scripts_in, written
from solution_support import assert_not_yet, solutions, verdict
from torch import Tensor

from support.exercises import lesson_05
from support.plots import data_parallel as plots

share_of = solutions("05").share_of
AVERAGE, HOOK = (written("05", f"exercise_05_{number}.py") for number in (1, 3))
SCALE = "        parameter.grad *= examples\n"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return scripts_in(tmp_path)


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("name", "source", "check"),
    [
        ("exercise_05_1.py", AVERAGE, lesson_05.check_average_gradients),
        ("exercise_05_3.py", HOOK, lesson_05.check_hook),
    ],
)
def test_right_program(name, source, check, scripts, capsys):
    program = run(scripts, name, source, 3, torchrun=True)
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, str(program)))
    program.touch()  # as if it had been changed since
    assert_not_yet(verdict(capsys, check, str(program)), "has written a result\n  got       False")


WRONG_PROGRAMS = {
    "plain mean": (
        AVERAGE,
        [(SCALE, ""), ("/= total", "/= dist.get_world_size()")],
        r"largest difference(.|\n)*0\.0\d+",
    ),
    "a sum": (AVERAGE, [("        parameter.grad /= total\n", "")], "largest difference"),
    "own examples": (AVERAGE, [("    dist.all_reduce(total)\n", "")], "largest difference"),
    "not averaged": (AVERAGE, [("        dist.all_reduce(parameter.grad)\n", "")], "largest difference"),
    "the default hook": (HOOK, [("hook=add_only", "hook=None")], r"largest difference(.|\n)*divide by nothing"),
    "divides": (HOOK, [("bucket.buffer(), async", "bucket.buffer().div_(3), async")], "largest difference"),
    "adds nothing": (HOOK, [("future.value()[0])", "future.value()[0] * 0)")], "largest difference"),
    "an error": (HOOK, [("work.get_future()", "work.no_such_thing()")], "has written a result\n  got       False"),
}


@pytest.mark.whole_run
@pytest.mark.parametrize(("source", "changes", "said"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS.keys())
def test_wrong_program(source, changes, said, scripts, capsys):
    number = 1 if source is AVERAGE else 3
    check = lesson_05.check_average_gradients if source is AVERAGE else lesson_05.check_hook
    program = run(scripts, f"exercise_05_{number}.py", changed(source, *changes), 3)
    assert_not_yet(verdict(capsys, check, str(program)), said)


@pytest.mark.whole_run
def test_a_program_that_is_not_there_or_runs_on_two_ranks(scripts, capsys):
    missing = str(scripts / "exercise_05_1.py")
    assert_not_yet(verdict(capsys, lesson_05.check_average_gradients, missing), "is there\n  got       False")
    program = run(scripts, "exercise_05_1.py", AVERAGE, 2)
    assert_not_yet(verdict(capsys, lesson_05.check_average_gradients, str(program)), "got       2\n  expected  3")


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("program", "ranks", "equal"), [("ddp_by_hand", 2, True), ("ddp_by_hand", 3, False), ("ddp_wrapped", 3, True)]
)
def test_the_programs_take_the_steps_of_one_process(program, ranks, equal, scripts):
    run(scripts, f"{program}.py", (scripts / f"{program}.py").read_text(), ranks, torchrun=True)
    expected = lesson_05.one_process()
    for rank in range(ranks):
        found = torch.load(scripts / "out" / f"{program.removeprefix('ddp_')}-{rank}.pt")
        assert torch.allclose(found["weights"], expected, atol=1e-5) == equal


def contiguous(batch: Tensor, rank: int, world_size: int, pad: bool) -> tuple[Tensor, float]:
    if pad:
        return share_of(batch, rank, world_size, pad)
    ids = batch.tensor_split(world_size)[rank]
    return ids, torch.tensor(len(ids) * world_size / len(batch), dtype=torch.float64)  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [share_of, contiguous])
def test_right_share(answer, capsys):
    assert verdict(capsys, lesson_05.check_share_of, answer) == "Exercise 2: correct\n"


def without_remainder(batch: Tensor, rank: int, world_size: int, _pad: bool) -> tuple[Tensor, float]:
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size], 1.0


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
    "remainder lost": (without_remainder, r"10 ids over 4 ranks(.|\n)*tensor \(8,\)(.|\n)*tensor \(10,\)"),
    "remainder to one": (remainder_to_the_last, "10 ids over 4 ranks.*largest(.|\n)*got       2\n  expected  1"),
    "no factor": (lambda *a: (share_of(*a)[0], 1.0), r"factors of shares of \[3, 3, 2, 2\](.|\n)*expected  \[1.2, "),
    "never padded": (lambda b, r, w, _p: share_of(b, r, w, False), r"pad=True: sizes of the shares"),
    "padded with the last": (padded_with_the_last, "what is missing comes from the front"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG_SHARES.values(), ids=WRONG_SHARES.keys())
def test_wrong_share(answer, said, capsys):
    assert_not_yet(verdict(capsys, lesson_05.check_share_of, answer), said)


def test_pictures():
    assert len(plots.one_step().axes) == 2
    events = [(0.0, "begin", ""), (0.1, "gradient", "0.weight"), (0.2, "starts", "0.weight"), (0.3, "done", "0.weight")]
    figure = plots.backward({"one": [*events, (0.4, "end", "")], "two": [*events, (0.5, "end", "")]})
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["compute the gradient of layer", "all_reduce of layer 0"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one", "two"]


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
