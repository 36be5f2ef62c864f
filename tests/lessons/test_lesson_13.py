"""The checkers of lesson 13 know right from wrong; its helper sorts events by run; its pictures draw."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import solutions

from support.exercises import lesson_13
from support.lessons.link_prediction import outcomes
from support.plots import link_prediction as plots

ANSWERS = solutions("13")
with_twins = ANSWERS.with_twins
mean_reciprocal_rank = ANSWERS.mean_reciprocal_rank
gather_ranks = ANSWERS.gather_ranks


def ranks_of(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    higher, equal = (negative > positive[:, None]).sum(1), (negative == positive[:, None]).sum(1)
    return 1 + higher + equal / 2


def unsorted(shares: list, edge_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return edge_map[torch.cat([ids for ids, _ in shares])].sort().values, torch.cat([ranks for _, ranks in shares])


RIGHT = {
    lesson_13.check_with_twins: with_twins,
    lesson_13.check_mean_reciprocal_rank: mean_reciprocal_rank,
    lesson_13.check_gather_ranks: gather_ranks,
}
WRONG = [
    (lesson_13.check_with_twins, lambda *_: None, r"got       None\n  expected  tensor \(6,\) torch.bool"),
    (lesson_13.check_with_twins, lambda _s, _d, chosen: chosen, "this is the mask as it came"),
    (
        lesson_13.check_with_twins,  # twins next to each other, as only some data sets have them
        lambda _s, _d, chosen: chosen | chosen.view(-1, 2).flip(1).flatten(),
        r"held-out mask of \d+ edges, from",
    ),
    (
        lesson_13.check_with_twins,  # only where there are few edges
        lambda s, d, chosen: with_twins(s, d, chosen) if len(s) < 20 else chosen,
        r"held-out mask of \d\d+ edges\n",
    ),
    (
        lesson_13.check_with_twins,  # nothing is chosen
        lambda s, d, chosen: with_twins(s, d, chosen) if chosen.any() else ~chosen,
        r"expected  tensor \(12,\) torch.bool \[False",
    ),
    (lesson_13.check_mean_reciprocal_rank, lambda *_: None, r"got       None\n  expected  0.75"),
    (
        lesson_13.check_mean_reciprocal_rank,
        lambda p, n: float(1 / ranks_of(p, n).mean()),
        r"got       0.666667\n  expected  0.75\n  hint: this is 1 / \(mean of the ranks\)",
    ),
    (
        lesson_13.check_mean_reciprocal_rank,
        lambda p, n: float((1 / (1 + (n > p[:, None]).sum(1))).mean()),
        r"got       1.0\n  expected  0.666667",
    ),
    (lesson_13.check_gather_ranks, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    (
        lesson_13.check_gather_ranks,
        lambda shares, _map: tuple(torch.cat([share[k] for share in shares]) for k in (0, 1)),
        "original ids\n.*\n.*\n  hint: these are ids of the partition",
    ),
    (lesson_13.check_gather_ranks, unsorted, "ranks\n  got .*\n  expected .*\n  hint: the same order for the ranks"),
]


@pytest.mark.parametrize(("check", "solution"), RIGHT.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_right_answers(check: Callable, solution: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    check(solution)
    assert re.fullmatch(r"Exercise \d: correct\n", capsys.readouterr().out)


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_wrong_answers(check: Callable, answer: Callable, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(answer)
    printed = capsys.readouterr().out
    assert re.match(r"Exercise \d: not yet\. ", printed)
    assert re.search(words, printed), printed


def test_events_of_several_runs_are_told_apart() -> None:
    """Ranks go through the runs at their own pace."""

    def event(kind: str, rank: int, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "time": 0.0, "rank": rank, "local_rank": 0, **fields}

    events = [
        {"kind": "stage", "stage": "servers", "time": 0.0},
        *(event("run", rank, number=0) for rank in (0, 1)),
        *(event("split", rank, train_edges=10 + rank) for rank in (1, 0)),
        event("step", 0, loss=1.0),
        event("step", 1, loss=5.0),
        event("run", 1, number=1),
        event("split", 1, train_edges=31),
        event("epoch", 0, epoch=0, loss=1.0),
        event("evaluation", 0, val_accuracy=0.5, scores={}),
        event("run", 0, number=1),
        event("split", 0, train_edges=30),
        event("step", 0, loss=2.0),
        event("evaluation", 0, val_accuracy=0.6, scores={}),
    ]
    first, second = outcomes(events, 2)
    assert first["split"] == [{"train_edges": 10}, {"train_edges": 11}]
    assert second["split"] == [{"train_edges": 30}, {"train_edges": 31}]
    assert (first["losses"], second["losses"]) == ([1.0], [2.0])
    assert (first["val_accuracy"], second["val_accuracy"]) == (0.5, 0.6)
    assert len(first["epochs"]) == 1


def test_pictures() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    drawn = plots.batch_of_edges(points, [(0, 1), (1, 2)], [(2, 3)], [(0, 1)], [(0, 3)], [(1, 2)])
    assert [ax.get_title() for ax in drawn.axes] == [
        "every pair is on one side",
        "a batch",
        "what its ends may look at",
    ]
    curves = plots.rank_curves({"one": np.array([1.0, 3.0, 11.0])}, 101)
    assert list(curves.axes[0].lines[0].get_ydata()[:3]) == pytest.approx([1 / 3, 1 / 3, 2 / 3])
