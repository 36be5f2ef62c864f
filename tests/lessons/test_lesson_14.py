"""The checkers of lesson 14 know right from wrong; its helpers read events; its pictures draw."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from solution_support import lesson_code, solutions
from torch import Tensor

from support.exercises import lesson_14
from support.plots import learned_rows as plots

ANSWERS = solutions("14")
held_by = lesson_code("14", "held_by").held_by
machine_bytes = ANSWERS.machine_bytes
vote = ANSWERS.vote


def summed(ids: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, means = ANSWERS.merge_gradients(ids, gradients)
    return rows, means * torch.cat(ids).unique(return_counts=True)[1][:, None]


RIGHT = {
    lesson_14.check_machine_bytes: machine_bytes,
    lesson_14.check_merge_gradients: ANSWERS.merge_gradients,
    lesson_14.check_vote: vote,
}
WRONG = [
    (lesson_14.check_machine_bytes, lambda *_: None, r"got       None\n  expected  \[772000, 772000\]"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [4 * c * w for c in n], "these are the rows alone"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [12 * c * w for c in n], "counts the steps of each row"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [8 * c * w for c in n], "hint: a float32 has four bytes"),
    (
        lesson_14.check_merge_gradients,  # only where all ranks have rows
        lambda i, g: ANSWERS.merge_gradients(i, g) if all(map(len, i)) else (i[0], g[0] * 2),
        "their gradients",
    ),
    (
        lesson_14.check_merge_gradients,  # only where each rank has one row
        lambda i, g: ANSWERS.merge_gradients(i, g) if max(map(len, i)) == 1 else (torch.cat(i), torch.cat(g)),
        "which rows change",
    ),
    (
        lesson_14.check_vote,  # only in the small graph
        lambda s, d, y, k, c: vote(s, d, y, k, c) if len(y) < 8 else torch.zeros_like(y),
        "votes for the class",
    ),
    (lesson_14.check_merge_gradients, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    (lesson_14.check_merge_gradients, summed, r"\[8.0\]\n  expected .* \[4.0\]\n  hint: the sum"),
    (
        lesson_14.check_merge_gradients,
        lambda i, g: (summed(i, g)[0], summed(i, g)[1] / len(i)),
        "not by that of all ranks",
    ),
    (lesson_14.check_merge_gradients, lambda i, g: (torch.cat(i), torch.cat(g)), "which rows change"),
    (lesson_14.check_vote, lambda *_: None, "got       'NoneType'"),
    (lesson_14.check_vote, lambda s, d, y, _k, c: vote(s, d, y, torch.arange(len(y)), c), "whose src is known"),
    (lesson_14.check_vote, lambda s, d, y, k, c: vote(d, s, y, k, c), "votes for the class"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT.items(), ids=lambda f: f.__name__)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(answer)
    assert re.fullmatch(r"Exercise \d: correct\n", capsys.readouterr().out)


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_wrong_answer(
    check: Callable[[Any], None], answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(answer)
    said = capsys.readouterr().out
    assert re.match(r"Exercise \d: not yet\. ", said)
    assert re.search(words, said), said


def test_any_class_of_a_draw_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    def last(src: Tensor, dst: Tensor, labels: Tensor, known: Tensor, classes: int) -> Tensor:
        return classes - 1 - lesson_14.counted(src, dst, labels, known, classes).flip(1).argmax(1)

    lesson_14.check_vote(last)
    assert capsys.readouterr().out == "Exercise 3: correct\n"


def test_what_machines_hold_in_their_order() -> None:
    numbers = {"rows": 3, "weight": 24, "step": 12, "mem": 24, "power": 24, "shared_memory": 16384}
    events = [{"kind": "embedding", "rank": k, "machine": f"machine-{k}", "time": 0.5, **numbers} for k in (1, 0)]
    assert held_by([{"kind": "epoch"}, *events]) == {"machine-0": numbers, "machine-1": numbers}


def test_pictures() -> None:
    table, labels = torch.rand(60, 5), torch.arange(60) % 3
    assert "has a gradient of row 0: 6" in " ".join(text.get_text() for text in plots.one_step().axes[0].texts)
    axes = plots.planes({"before": table, "after": table}, labels, [0, 2]).axes
    assert [ax.get_title() for ax in axes] == ["before", "after"]
    assert [len(points.get_offsets()) for points in axes[0].collections] == [20, 20]
