"""The checkers of lesson 2, and the request that its programs send to a server."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from program_support import written
from solution_support import NOTEBOOKS, answer_tests, solutions

from support.exercises import lesson_02

sys.path.append(str(NOTEBOOKS / "scripts"))  # where the programs of a lesson find each other
ANSWERS = solutions("02")
sgd_step = ANSWERS.sgd_step


def mean_of_means(tensor, rows):
    ends = range(0, len(tensor), rows)
    return torch.stack([tensor[k : min(k + rows, len(tensor))].mean(0) for k in ends]).mean(0)


def open_slice(tensor, rows):
    """A plain tensor would cut the slice off; a DistTensor reads what is not there."""
    return torch.cat([tensor[k : k + rows] for k in range(0, len(tensor), rows)]).mean(0)


def whole_chunks_only(tensor, rows):
    rows = min(rows, len(tensor))
    return sum(tensor[k : k + rows].sum(0) for k in range(0, len(tensor) - rows + 1, rows)) / len(tensor)


def first_and_last(tensor, _rows):
    """Right for numbers that grow by steps of one size, as those of the checker."""
    return (tensor[0:1] + tensor[len(tensor) - 1 : len(tensor)]).flatten() / 2


MEANS = {
    "past the end": (open_slice, "Your code raised IndexError: index 7 is out of bounds"),
    "whole chunks": (whole_chunks_only, "mean for a table of 7 rows"),
    "first and last": (first_and_last, r"rows read, .* 6 rows and 2 columns, 2 rows at a time\n  got       \[0, 5\]"),
    "stub": (lambda _t, _n: None, "got       'NoneType'"),
    "not a method": (lambda t, _n: t.mean(0), "Your code raised .*'DistTensor' object has no attribute 'mean'"),
    "at once": (lambda t, _n: t[0 : len(t)].mean(0), "most rows read at once, for a table of 6 rows and 2 columns"),
    "mean of means": (mean_of_means, "mean for a table of 7 rows"),
}
test_right_mean, test_wrong_mean = answer_tests(lesson_02.check_column_mean, [ANSWERS.column_mean], MEANS)


def last_gradient_wins(weight, ids, grad, lr):
    weight[ids] -= lr * grad


def whole_table(weight, ids, grad, lr):
    weight[torch.arange(len(weight))] -= torch.zeros(tuple(weight.shape)).index_add_(0, ids, lr * grad)


def one_row_more(weight, ids, grad, lr):
    sgd_step(weight, ids, grad, lr)
    weight[[0]] = weight.values[[0]]


STEPS = {
    "one row more": (one_row_more, r"rows written in a step on ids \[1, 4\]\n  got       \[0, 1, 4\]"),
    "stub": (lambda *_: None, r"row 1 after a step on ids \[1, 4\]\n  got"),
    "uphill": (lambda w, i, g, lr: sgd_step(w, i, g, -lr), r"row 1 after a step on ids \[1, 4\]\n  got"),
    "last gradient": (last_gradient_wins, r"row 5 after a step on ids \[5, 2, 5\]\n  got"),
    "whole table": (whole_table, r"got       \[0, 1, 2, 3, 4, 5\]\n  expected  \[1, 4\]"),
}
test_right_step, test_wrong_step = answer_tests(lesson_02.check_sgd_step, [sgd_step], STEPS)


OFFERS = [[(37 * step + 13 * k + 50 * rank) % 997 for k in range(20)] for step in range(50) for rank in range(2)]
PROGRAM = {"__name__": "exercise_02_2"}
exec(written("02", "exercise_02_2.py"), PROGRAM)
KeepHighest: Any = PROGRAM["KeepHighest"]


def request_that(change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> type:
    """The solution's request, but the server changes table, ids and rows in another way."""

    def process_request(self: Any, server_state: Any) -> None:
        change(server_state.kv_store.data_store[self.name], self.ids, self.rows)

    return type("Request", (KeepHighest,), {"process_request": process_request})


def last_write(table, ids, rows):
    for row, value in zip(ids, rows, strict=True):
        table[row] = value


def last_of_two(table, ids, rows):
    table[ids] = torch.maximum(table[ids], rows)


def served(kind, offers):
    """What the rows hold after a server has handled these offers, one after the other."""
    policy = SimpleNamespace(to_local=lambda ids: ids)
    table = torch.zeros(64, 1)
    state = SimpleNamespace(kv_store=SimpleNamespace(part_policy={"best": policy}, data_store={"best": table}))
    for offer in offers:
        kind("best", torch.arange(20) % 10, torch.tensor(offer).float().reshape(20, 1)).process_request(state)
    return table[:10].flatten().tolist()


@pytest.fixture
def highest(tmp_path: Path) -> Callable[[Any], tuple[Path]]:
    """Write what the job of (kind of request, offers) would write; or a text; or nothing."""

    def write(answer: Any) -> tuple[Path]:
        if answer is not None:
            text = answer if isinstance(answer, str) else json.dumps(served(*answer))
            (tmp_path / "highest.json").write_text(text)
        return (tmp_path / "highest.json",)

    return write


def summed(table, ids, rows):
    table.index_add_(0, ids, rows)


def of_one_request(table, ids, rows):
    table.index_reduce_(0, ids, rows, "amax", include_self=False)


HIGHEST = {
    "last write": ((request_that(last_write), OFFERS), "got       'what was offered last'\n  expected  'the highest"),
    "last write, by ranks": (
        (request_that(last_write), OFFERS[1::2] + OFFERS[::2]),
        "got       'what was offered last",
    ),
    "a row that occurs twice": ((request_that(last_of_two), OFFERS), "mind a row that occurs twice"),
    "sum": ((request_that(summed), OFFERS), "the ten rows\n  got"),
    "of one request": ((request_that(of_one_request), OFFERS), "the ten rows\n  got"),
    "rank 1 was not heard": ((KeepHighest, OFFERS[::2]), "the ten rows\n  got"),
    "did not wait for all": ((KeepHighest, OFFERS[:-20]), "the ten rows\n  got"),
    "did not run": (None, "highest.json was written by the job\n  got       False"),
    "half a file": ("[1, 2", "Your code raised JSONDecodeError"),
}
test_right_highest, test_wrong_highest = answer_tests(
    lesson_02.check_highest, [(KeepHighest, OFFERS), (KeepHighest, OFFERS[::-1])], HIGHEST, "highest"
)


def test_the_request_of_the_lesson_adds_in_the_server_and_travels():
    tensors_add = importlib.import_module("tensors_add")
    sent = tensors_add.AddRows("best", torch.arange(20) % 10, torch.ones(20, 1))
    came = object.__new__(tensors_add.AddRows)
    came.__setstate__(sent.__getstate__())
    assert served(lambda *_: came, [[0] * 20] * 3) == [6.0] * 10  # each row twice in a request
