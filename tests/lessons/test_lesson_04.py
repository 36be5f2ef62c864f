"""The checkers of lesson 4 accept right answers and name wrong ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_04

ANSWERS = solutions("04")
owner = ANSWERS.owner


def owner_with_end(ranges, ids):
    return torch.searchsorted(torch.tensor([end for _first, end in ranges]), ids)


def got(value: str, expected: str) -> str:
    """The pattern of a complaint with these elements."""
    numbers = [part.replace("[", r"\[").replace("]", r"\]") for part in (value, expected)]
    return r"  got .*{}\n  expected .*{}\n  hint: ".format(*numbers)


OWNERS = {
    "stub": (lambda _ranges, _ids: None, got("None", "[0, 0, 1, 1]")),
    "end counted in": (owner_with_end, got("[0, 0, 0, 1]", "[0, 0, 1, 1]")),
    "equal parts": (lambda r, ids: ids // (r[-1][1] // len(r)), got("[0, 0, 1, 2]", "[0, 0, 1, 1]")),
    "always the last": (lambda r, ids: torch.full_like(ids, len(r) - 1), got("[1, 1, 1, 1]", "[0, 0, 1, 1]")),
    "a list": (lambda r, ids: owner(r, ids).tolist(), got("[0, 0, 1, 1]", "tensor .*")),
    "raises": (lambda _ranges, ids: ids[100], "Your code raised IndexError"),
}
test_right_owner, test_wrong_owner = answer_tests(lesson_04.check_owner, [owner], OWNERS)


def in_place(rows, node_map):
    rows[node_map] = rows.clone()
    return rows


IN_ORDER = "[0, 1, 10, 11, 20, 21]"
ORDERS = {
    "upside down": (lambda rows, m: rows[m.argsort()].flip(0), got("[20, 21, 10, 11, 0, 1]", IN_ORDER)),
    "wrong way": (lambda rows, node_map: rows[node_map], got("[10, 11, 20, 21, 0, 1]", IN_ORDER)),
    "not changed": (lambda rows, _map: rows, got("[20, 21, 0, 1, 10, 11]", IN_ORDER)),
    "in place": (in_place, got(IN_ORDER, "[20, 21, 0, 1, 10, 11]")),
}
test_right_order, test_wrong_order = answer_tests(lesson_04.check_original_order, [ANSWERS.original_order], ORDERS)

RANK = {"fanouts": [10, 5], "batch_size": 50, "steps": 19, "sample": 200_000, "pull": 2_000_000, "update": 1_300_000}


@pytest.fixture
def predicted(tmp_path: Path) -> Callable[[Any], tuple[Any, Path]]:
    """A number, or (number, changes of a rank, ranks), with the file of the program of exercise 3.

    Both machines together have received 7,000,000 bytes.
    """

    def predict(answer: Any) -> tuple[Any, Path]:
        number, changes, ranks = answer if isinstance(answer, tuple) else (answer, {}, 2)
        if ranks:
            (tmp_path / "result.json").write_text(json.dumps([{**RANK, **changes}] * ranks))
        return number, tmp_path / "result.json"

    return predict


PREDICTIONS = {
    "stub": (None, "your prediction"),
    "a text": ("7 MB", "your prediction"),
    "one machine only": (3_500_000, "-50%"),
    "every row remote": (38_600_000, "\\+451%"),
    "no gradients": (4_400_000, "-37%"),
    "no number": (float("nan"), "at most 10%"),
    "fan-outs not changed": ((7_000_000, {"fanouts": [5, 10]}, 2), "fanouts of rank 0"),
    "batch size not changed": ((7_000_000, {"batch_size": 100}, 2), "batch_size of rank 0"),
    "one process": ((3_500_000, {}, 1), "ranks that have written"),
    "did not run": ((7_000_000, {}, 0), "result.json is not there"),
}
WITHIN = [7_000_000, 6_500_000.0, torch.tensor(7.5e6), np.float32(6.4e6), np.int64(7_600_000)]
test_within_ten_percent, test_a_prediction_that_is_off = answer_tests(
    lesson_04.check_prediction, WITHIN, PREDICTIONS, "predicted"
)


def test_the_model_of_the_solution():
    """Two rows and one step of two ranks, with the 18,927 parameters that DGL's model really has."""
    assert ANSWERS.model_bytes(2, 1, 0) == 2 * 408 + 2 * 18_927 * 4
    assert ANSWERS.model_bytes(0, 10, 0.5) == 1.5 * 20 * 18_927 * 4
