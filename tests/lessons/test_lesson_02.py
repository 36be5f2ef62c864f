"""The checkers of lesson 2 and what its two-trainer job reports."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from dgl.distributed import DistEmbedding

from support.exercises import lesson_02
from support.lessons import collective
from support.plots import tensors


def said(capsys: pytest.CaptureFixture[str], check: Callable, answer: Callable) -> str:
    check(answer)
    return capsys.readouterr().out


def column_mean(tensor, rows_at_a_time):
    total = torch.zeros(tensor.shape[1:])
    for start in range(0, len(tensor), rows_at_a_time):
        total += tensor[start : min(start + rows_at_a_time, len(tensor))].sum(0)
    return total / len(tensor)


def mean_of_means(tensor, rows):
    ends = range(0, len(tensor), rows)
    return torch.stack([tensor[k : min(k + rows, len(tensor))].mean(0) for k in ends]).mean(0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (column_mean, "Exercise 1: correct"),
        (lambda _t, _n: None, "got       'NoneType'"),
        (lambda t, _n: t.mean(0), "'DistTensor' object has no attribute 'mean'"),
        (lambda t, _n: t[0 : len(t)].mean(0), "most rows read at once, for a table of 6 rows and 2 columns"),
        (mean_of_means, "mean for a table of 7 rows"),
    ],
)
def test_column_mean(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_column_mean, answer)


def sgd_step(weight, ids, grad, lr):
    rows, place = ids.unique(return_inverse=True)
    weight[rows] -= lr * torch.zeros(len(rows), grad.shape[1]).index_add_(0, place, grad)


def last_gradient_wins(weight, ids, grad, lr):
    weight[ids] -= lr * grad


def uphill(weight, ids, grad, lr):
    sgd_step(weight, ids, grad, -lr)


def whole_table(weight, ids, grad, lr):
    weight[torch.arange(len(weight))] -= torch.zeros(tuple(weight.shape)).index_add_(0, ids, lr * grad)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (sgd_step, "Exercise 2: correct"),
        (lambda *_: None, "row 1 after a step on ids [1, 4]\n  got"),
        (uphill, "row 1 after a step on ids [1, 4]\n  got"),
        (last_gradient_wins, "row 5 after a step on ids [5, 2, 5]\n  got"),
        (whole_table, "got       [0, 1, 2, 3, 4, 5]\n  expected  [1, 4]"),
    ],
)
def test_sgd_step(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_sgd_step, answer)


def collect(model):
    found = [v for part in model.modules() for v in vars(part).values() if isinstance(v, DistEmbedding)]
    return found, list(model.parameters())


def only_the_top(model):
    return [v for v in vars(model).values() if isinstance(v, DistEmbedding)], list(model.parameters())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (collect, "Exercise 3: correct"),
        (lambda _m: None, "got       'NoneType'\n  expected  'tuple'"),
        (lambda m: ([], list(m.parameters())), "number of embeddings of a model with one embedding\n  got       0"),
        (only_the_top, "one in a part of it\n  got       1\n  expected  2"),
        (lambda m: (collect(m)[0], []), "dense parameters of a model without embedding"),
    ],
)
def test_collect(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_collect, answer)


def test_the_initialiser_of_the_job_travels_by_name():
    """The server needs the module, not the code: what is sent holds two names."""
    sent = pickle.dumps(collective.ones)
    assert pickle.loads(sent) is collective.ones
    assert b"support.lessons.collective" in sent


def test_plots_are_figures():
    table = torch.arange(24.0).reshape(8, 3)
    losses = {"a": [2.0, 1.0], "b": [2.0, 1.5]}
    figures = [
        tensors.names_and_rows(),
        tensors.lost_update(1, 2, 3),
        tensors.touched_rows(table, table + 1, [2]),
        tensors.two_optimizers(),
        tensors.moved_rows(*[torch.eye(3).bool()] * 3),
        tensors.embedding_training(losses, {"a": 0.5, "b": 0.4}, 0.2),
        tensors.embedding_map(table, -table, torch.arange(8) % 2, [0, 1]),
    ]
    assert all(figure.axes for figure in figures)
