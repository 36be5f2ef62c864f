"""The checkers of lesson 2 and what its two-trainer job reports."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from dgl.distributed import DistEmbedding
from solution_support import solutions

from support.exercises import lesson_02
from support.lessons import collective
from support.plots import tensors


def said(capsys: pytest.CaptureFixture[str], check: Callable, answer: Callable) -> str:
    check(answer)
    return capsys.readouterr().out


ANSWERS = solutions("02")
column_mean = ANSWERS.column_mean
sgd_step = ANSWERS.sgd_step
collect = ANSWERS.collect


def mean_of_means(tensor, rows):
    ends = range(0, len(tensor), rows)
    return torch.stack([tensor[k : min(k + rows, len(tensor))].mean(0) for k in ends]).mean(0)


def past_the_end(tensor, rows):
    return sum(tensor[k : k + rows].sum(0) for k in range(0, len(tensor), rows)) / len(tensor)


def first_and_last(tensor, _rows):
    """Right for numbers that grow by steps of one size, as those of the checker."""
    return (tensor[0:1] + tensor[len(tensor) - 1 : len(tensor)]).flatten() / 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (column_mean, "Exercise 1: correct"),
        (past_the_end, "Your code raised IndexError"),
        (first_and_last, "rows read, for a table of 6 rows and 2 columns, 2 rows at a time\n  got       [0, 5]"),
        (lambda _t, _n: None, "got       'NoneType'"),
        (lambda t, _n: t.mean(0), "'DistTensor' object has no attribute 'mean'"),
        (lambda t, _n: t[0 : len(t)].mean(0), "most rows read at once, for a table of 6 rows and 2 columns"),
        (mean_of_means, "mean for a table of 7 rows"),
    ],
)
def test_column_mean(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_column_mean, answer)


def last_gradient_wins(weight, ids, grad, lr):
    weight[ids] -= lr * grad


def uphill(weight, ids, grad, lr):
    sgd_step(weight, ids, grad, -lr)


def whole_table(weight, ids, grad, lr):
    weight[torch.arange(len(weight))] -= torch.zeros(tuple(weight.shape)).index_add_(0, ids, lr * grad)


def one_row_more(weight, ids, grad, lr):
    sgd_step(weight, ids, grad, lr)
    weight[[0]] = weight.values[[0]]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (one_row_more, "rows written in a step on ids [1, 4]\n  got       [0, 1, 4]"),
        (sgd_step, "Exercise 2: correct"),
        (lambda *_: None, "row 1 after a step on ids [1, 4]\n  got"),
        (uphill, "row 1 after a step on ids [1, 4]\n  got"),
        (last_gradient_wins, "row 5 after a step on ids [5, 2, 5]\n  got"),
        (whole_table, "got       [0, 1, 2, 3, 4, 5]\n  expected  [1, 4]"),
    ],
)
def test_sgd_step(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_sgd_step, answer)


def first_again(model):
    found, parameters = collect(model)
    return found[:1] * len(found), parameters


def only_the_top(model):
    return [v for v in vars(model).values() if isinstance(v, DistEmbedding)], list(model.parameters())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (collect, "Exercise 3: correct"),
        (lambda _m: None, "got       'NoneType'\n  expected  'tuple of 2'"),
        (lambda m: ([], list(m.parameters())), "number of embeddings of a model with one embedding\n  got       0"),
        (only_the_top, "one in a part of it\n  got       1\n  expected  2"),
        (lambda m: (collect(m)[0],), "type of the answer for a model without embedding\n  got       'tuple of 1'"),
        (first_again, "the right embeddings of a model with an embedding of its own and one in a part of it"),
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


def test_pictures_show_what_they_are_given():
    names = {text.get_text().split("\n")[0] for text in tensors.names_and_rows().axes[0].texts}
    assert {"first", "second", '"views"', '"kept", persistent', "a trainer"} <= names
    both = [text.get_text() for ax in tensors.lost_update(1, 2, 3).axes for text in ax.texts]
    assert {"writes 1 + 1", "the row holds 2: one update is lost", "the row holds 3", "writes 1 + 2"} <= set(both)
    table = torch.arange(24.0).reshape(8, 3)
    shown = [ax.images[0].get_array() for ax in tensors.touched_rows(table, table + 1, [2]).axes[:3]]
    assert [array.tolist() for array in shown] == [table.tolist(), (table + 1).tolist(), torch.ones(8, 3).tolist()]
    moves = tensors.moved_rows(torch.eye(3).bool(), torch.ones(3, 3).bool(), torch.zeros(3, 3).bool())
    assert [ax.get_title().split(": ")[1] for ax in moves.axes] == ["3", "9", "0"]
    losses, bars = tensors.embedding_training({"a": [2.0, 1.0], "b": [2.0, 1.5]}, {"a": 0.5, "b": 0.4}, 0.2).axes
    assert [line.get_ydata().tolist() for line in losses.lines] == [[2.0, 1.0], [2.0, 1.5]]
    assert [text.get_text() for text in bars.texts] == [" 20%", " 50%", " 40%"]
    maps = tensors.embedding_map(table, -table, torch.arange(8) % 2, [0, 1]).axes
    assert [[len(points.get_offsets()) for points in ax.collections] for ax in maps] == [[4, 4], [4, 4]]
    assert "nn.Module\n(thousands)" in {text.get_text() for text in tensors.two_optimizers().axes[0].texts}
