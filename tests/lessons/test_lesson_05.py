"""Lesson 5: the checkers accept a right function and say what is wrong with a wrong one; what the ranks do is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from solution_support import lesson_code, solutions
from torch import Tensor, nn

from support.exercises import lesson_05
from support.plots import data_parallel as plots
from tutorial_lib.processes import fork

CPU = (torch.device("cpu"),) * 3
IN_CELLS = ("RATE", "loss_of", "share", "average", "by_hand", "accuracies", "unequal_steps")
lesson = lesson_code("05", *IN_CELLS)


ANSWERS = solutions("05")
average_gradients = ANSWERS.average_gradients
own_part = ANSWERS.own_part
global_accuracy = ANSWERS.global_accuracy


def average_in_one_call(model: nn.Module, examples: int) -> None:
    """Gradients and the number of examples in one tensor."""
    flat = torch.cat([*(p.grad.flatten() * examples for p in model.parameters()), torch.tensor([float(examples)])])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat[:-1] / flat[-1], (p.grad for p in model.parameters()))


def average_plain(model: nn.Module, examples: int) -> None:
    for parameter in model.parameters():
        lesson.average(parameter.grad, examples, "plain")


def average_summed(model: nn.Module, _examples: int) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def average_on_rank_0(model: nn.Module, examples: int) -> None:
    if dist.get_rank() == 0:
        average_gradients(model, examples)


def own_part_in_strides(batch: Tensor, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    ids = batch[rank::world_size]
    return ids, torch.tensor(len(ids) / len(batch) * world_size, dtype=torch.float64)


def without_remainder(batch: Tensor, rank: int, world_size: int) -> tuple[Tensor, float]:
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size], 1.0


def remainder_to_the_last(batch: Tensor, rank: int, world_size: int) -> tuple[Tensor, float]:
    size = len(batch) // world_size
    ids = batch[rank * size :] if rank == world_size - 1 else batch[rank * size : (rank + 1) * size]
    return ids, len(ids) * world_size / len(batch)


def mean_of_accuracies(predictions: Tensor, labels: Tensor) -> float:
    value = (predictions == labels).float().mean()
    dist.all_reduce(value)
    return float(value) / dist.get_world_size()


def accuracy_on_rank_0(predictions: Tensor, labels: Tensor) -> float:
    counts = torch.tensor([int((predictions == labels).sum()), len(labels)])
    dist.reduce(counts, dst=0)
    return int(counts[0]) / max(int(counts[1]), 1)


CHECKS = (lesson_05.check_average_gradients, lesson_05.check_own_part, lesson_05.check_global_accuracy)
RIGHT = [
    (0, average_gradients),
    (0, average_in_one_call),
    (1, own_part),
    (1, own_part_in_strides),
    (2, global_accuracy),
]
WRONG = {
    "stub 1": (0, lambda *_: None, r"got       \[1.0, 2.0, 4.0\]\n  expected  \[2.0, 4.0, 2.0\]"),
    "a sum": (
        0,
        average_summed,
        r"got       \[4.0, 8.0, 4.0\]\n  expected  \[2.0, 4.0, 2.0\]\n  hint: .*number of ranks",
    ),
    "plain mean": (0, average_plain, r"shares of \[3, 1\](.|\n)*got       \[0.0, 6.0(.|\n)*hint: .*`examples`"),
    "raises": (0, lambda model, _n: model.no_such_thing(), "Your code raised AttributeError"),
    "stub 2": (1, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    "one thing": (
        1,
        lambda *a: own_part(*a)[:1],
        "type of what rank 0 gets\n  got       'tuple of 1'",
    ),
    "a list": (1, lambda *a: (own_part(*a)[0].tolist(), 1.0), "first item of rank 0\n  got       'list'"),
    "remainder lost": (1, without_remainder, r"10 ids over 4 ranks(.|\n)*tensor \(8,\)(.|\n)*tensor \(10,\)"),
    "remainder to one": (1, remainder_to_the_last, "10 ids over 4 ranks: largest(.|\n)*got       2\n  expected  1"),
    "no factor": (1, lambda *a: (own_part(*a)[0], 1.0), r"factors of shares of \[3, 3, 2, 2\](.|\n)*expected  \[1.2, "),
    "stub 3": (2, lambda *_: None, r"got       \[None, None\]\n  expected  \[0.375, 0.375\]"),
    "mean": (2, mean_of_accuracies, r"got       \[0.5833, 0.5833\]\n  expected  \[0.375, 0.375\]\n  hint: Sum"),
    "one rank only": (2, accuracy_on_rank_0, r"got       \[0.375, 0\.\d+\]\n  expected  \[0.375, 0.375\]"),
}


def verdict(capsys: pytest.CaptureFixture[str], number: int, answer: Callable[..., Any]) -> str:
    CHECKS[number](answer)
    return capsys.readouterr().out


@pytest.mark.parametrize(("number", "answer"), RIGHT)
def test_right_answer(number: int, answer: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(capsys, number, answer) == f"Exercise {number + 1}: correct\n"


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Callable[..., Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = verdict(capsys, number, answer)
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


def test_a_collective_on_one_rank_only_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_05, "LIMIT", 1.5)
    output = verdict(capsys, 0, average_on_rank_0)
    assert output.startswith("Exercise 1: not yet. rank 0 of 2 ranks did not come back\n  hint: each rank must call")


X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [0.0, 2.0]])
Y = torch.tensor([2.0, 1.0, 4.0, 3.0, 6.0])


@pytest.mark.parametrize(("count", "how", "ranks"), [(4, "plain", 2), (5, "weighted", 2), (5, "weighted", 3)])
def test_by_hand_takes_the_steps_of_one_process(count: int, how: str, ranks: int) -> None:
    x, y = X[:count], Y[:count]
    single = fork(lesson.by_hand, 1, (CPU, x, y, 3, "not at all"), threads=1, timeout=30)[0]
    for history in fork(lesson.by_hand, ranks, (CPU, x, y, 3, how), backend="gloo", threads=1, timeout=30):
        for held, expected in zip(history, single, strict=True):
            assert torch.allclose(held["weight after"], expected["weight after"])


def test_plain_mean_of_uneven_shares_is_wrong() -> None:
    weight = torch.zeros(2, requires_grad=True)
    (expected,) = torch.autograd.grad(lesson.loss_of(weight, X, Y), weight)
    history = fork(lesson.by_hand, 2, (CPU, X, Y, 1, "plain"), backend="gloo", threads=1, timeout=30)[0]
    assert not torch.allclose(history[0]["gradient"], expected, rtol=0.01)


def test_accuracies() -> None:
    right = [torch.tensor([1, 1]), torch.tensor([0, 0, 0, 1])]
    found = fork(lesson.accuracies, 2, (CPU, right), backend="gloo", threads=1, timeout=30)
    assert [ranks["global"] for ranks in found] == [0.5, 0.5]
    assert [ranks["mean of accuracies"] for ranks in found] == [0.625, 0.625]


def test_unequal_steps_time_out() -> None:
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        fork(lesson.unequal_steps, 2, (CPU, 2.0, False), backend="gloo", threads=1, timeout=40)


def test_unequal_steps_under_join() -> None:
    (three, first), (two, second) = fork(
        lesson.unequal_steps, 2, (CPU, 20.0, True), backend="gloo", threads=1, timeout=40
    )
    assert (three, two) == (3, 2)
    assert torch.equal(first, second)


def test_pictures() -> None:
    assert len(plots.one_step().axes) == 2
    events = [(0.0, "begin", ""), (0.1, "gradient", "0.weight"), (0.2, "starts", "0.weight"), (0.3, "done", "0.weight")]
    figure = plots.backward([*events, (0.4, "end", "")], "title")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["computing layer", "all_reduce, bucket 0"]
