"""The checkers of lesson 2, and the request that its programs send to a server."""

import importlib
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from program_support import written
from solution_support import NOTEBOOKS, solutions

from support.exercises import lesson_02
from support.plots import tensors

sys.path.append(str(NOTEBOOKS / "scripts"))  # where the programs of a lesson find each other


def said(capsys: pytest.CaptureFixture[str], check: Callable, answer: Callable) -> str:
    check(answer)
    return capsys.readouterr().out


ANSWERS = solutions("02")
column_mean = ANSWERS.column_mean
sgd_step = ANSWERS.sgd_step


def mean_of_means(tensor, rows):
    ends = range(0, len(tensor), rows)
    return torch.stack([tensor[k : min(k + rows, len(tensor))].mean(0) for k in ends]).mean(0)


def past_the_end(tensor, rows):
    return sum(tensor[k : k + rows].sum(0) for k in range(0, len(tensor), rows)) / len(tensor)


def open_slice(tensor, rows):
    """A plain tensor would cut the slice off; a DistTensor reads what is not there."""
    return torch.cat([tensor[k : k + rows] for k in range(0, len(tensor), rows)]).mean(0)


def whole_chunks_only(tensor, rows):
    rows = min(rows, len(tensor))
    return sum(tensor[k : k + rows].sum(0) for k in range(0, len(tensor) - rows + 1, rows)) / len(tensor)


def first_and_last(tensor, _rows):
    """Right for numbers that grow by steps of one size, as those of the checker."""
    return (tensor[0:1] + tensor[len(tensor) - 1 : len(tensor)]).flatten() / 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (column_mean, "Exercise 1: correct"),
        (past_the_end, "Your code raised IndexError: index 7 is out of bounds"),
        (open_slice, "Your code raised IndexError: index 7 is out of bounds"),
        (whole_chunks_only, "mean for a table of 7 rows"),
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
        (sgd_step, "Exercise 3: correct"),
        (lambda *_: None, "row 1 after a step on ids [1, 4]\n  got"),
        (uphill, "row 1 after a step on ids [1, 4]\n  got"),
        (last_gradient_wins, "row 5 after a step on ids [5, 2, 5]\n  got"),
        (whole_table, "got       [0, 1, 2, 3, 4, 5]\n  expected  [1, 4]"),
    ],
)
def test_sgd_step(capsys, answer, words):
    assert words in said(capsys, lesson_02.check_sgd_step, answer)


OFFERS = [[(37 * step + 13 * k + 50 * rank) % 997 for k in range(20)] for step in range(50) for rank in range(2)]


PROGRAM = {"__name__": "exercise_02_2"}
exec(written("02", "exercise_02_2.py"), PROGRAM)
KeepHighest: Any = PROGRAM["KeepHighest"]


class Sum(KeepHighest):
    def process_request(self, server_state):
        server_state.kv_store.data_store[self.name].index_add_(0, self.ids, self.rows)


class LastOfTwo(KeepHighest):
    def process_request(self, server_state):
        table = server_state.kv_store.data_store[self.name]
        table[self.ids] = torch.maximum(table[self.ids], self.rows)


class Mean(KeepHighest):
    def process_request(self, server_state):
        server_state.kv_store.data_store[self.name].index_reduce_(0, self.ids, self.rows, "mean")


class Lowest(KeepHighest):
    def process_request(self, server_state):
        server_state.kv_store.data_store[self.name].index_reduce_(0, self.ids, self.rows, "amin")


class LastWrite(KeepHighest):
    def process_request(self, server_state):
        table = server_state.kv_store.data_store[self.name]
        for row, value in zip(self.ids, self.rows, strict=True):
            table[row] = value


class ForgetsTheTable(KeepHighest):
    """The highest of one request, not of what the row holds."""

    def process_request(self, server_state):
        table = server_state.kv_store.data_store[self.name]
        table.index_reduce_(0, self.ids, self.rows, "amax", include_self=False)


def served(kind, offers):
    """What the rows hold after a server has handled these offers, one after the other."""
    policy = SimpleNamespace(to_local=lambda ids: ids)
    table = torch.zeros(64, 1)
    state = SimpleNamespace(kv_store=SimpleNamespace(part_policy={"best": policy}, data_store={"best": table}))
    for offer in offers:
        kind("best", torch.arange(20) % 10, torch.tensor(offer).float().reshape(20, 1)).process_request(state)
    return table[:10].flatten().tolist()


@pytest.mark.parametrize(
    ("kind", "offers", "words"),
    [
        (KeepHighest, OFFERS, "Exercise 2: correct"),
        (KeepHighest, OFFERS[::-1], "Exercise 2: correct"),  # in any order
        (LastWrite, OFFERS, "got       'what was offered last'\n  expected  'the highest offers'"),
        (LastWrite, OFFERS[1::2] + OFFERS[::2], "got       'what was offered last'"),
        (LastOfTwo, OFFERS, "mind a row that occurs twice"),
        (Sum, OFFERS, "the ten rows\n  got"),
        (Mean, OFFERS, "the ten rows\n  got"),
        (Lowest, OFFERS, "the ten rows\n  got       [0.0, 0.0"),
        (ForgetsTheTable, OFFERS, "the ten rows\n  got"),
        (KeepHighest, OFFERS[::2], "the ten rows\n  got"),  # rank 1 was not heard
        (KeepHighest, OFFERS[:-20], "the ten rows\n  got"),  # did not wait for all
    ],
)
def test_highest(capsys, tmp_path, kind, offers, words):
    (tmp_path / "highest.json").write_text(json.dumps(served(kind, offers)))
    assert words in said(capsys, lesson_02.check_highest, tmp_path / "highest.json")


def test_highest_of_a_job_that_did_not_run(capsys, tmp_path):
    assert "highest.json was written by the job\n  got       False" in said(
        capsys, lesson_02.check_highest, tmp_path / "highest.json"
    )
    (tmp_path / "highest.json").write_text("[1, 2")
    assert "Exercise 2: not yet" in said(capsys, lesson_02.check_highest, tmp_path / "highest.json")


def test_the_request_of_the_lesson_adds_in_the_server_and_travels():
    tensors_add = importlib.import_module("tensors_add")
    sent = tensors_add.AddRows("best", torch.arange(20) % 10, torch.ones(20, 1))
    came = object.__new__(tensors_add.AddRows)
    came.__setstate__(sent.__getstate__())
    assert served(lambda *_: came, [[0] * 20] * 3) == [6.0] * 10  # each row twice in a request


def test_pictures_show_what_they_are_given():
    names = {text.get_text().split("\n")[0] for text in tensors.names_and_rows().axes[0].texts}
    assert {"first", "second", '"views"', '"kept", persistent', "a trainer"} <= names
    both = [text.get_text() for ax in tensors.lost_update(1, 2, 3).axes for text in ax.texts]
    assert {"writes 1 + 1", "the row holds 2: one update is lost", "the row holds 3"} <= set(both)
    assert {"asks: add 1", "server: 1 + 1, then 2 + 1"} <= set(both)
    table = torch.arange(24.0).reshape(8, 3)
    shown = [ax.images[0].get_array() for ax in tensors.touched_rows(table, table + 1, [2]).axes[:3]]
    assert [array.tolist() for array in shown] == [table.tolist(), (table + 1).tolist(), torch.ones(8, 3).tolist()]
    moves = tensors.moved_rows(torch.eye(3).bool(), torch.ones(3, 3).bool(), torch.zeros(3, 3).bool())
    assert [ax.get_title().split(": ")[1] for ax in moves.axes] == ["3", "9", "0"]
    losses, bars = tensors.embedding_training({"a": [2.0, 1.0], "b": [2.0, 1.5]}, {"a": 0.5, "b": 0.4}, 0.2).axes
    assert [line.get_ydata().tolist() for line in losses.lines] == [[2.0, 1.0], [2.0, 1.5]]
    assert [text.get_text() for text in bars.texts] == [" 20%", " 50%", " 40%"]
    assert "nn.Module\n(thousands)" in {text.get_text() for text in tensors.two_optimizers().axes[0].texts}
