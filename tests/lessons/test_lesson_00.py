"""The checkers of lesson 0: they accept a right function and say what is wrong with a wrong one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from solution_support import solutions
from torch import Tensor

from support.exercises import lesson_00
from support.plots import start

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize(
    "right",
    [
        lambda total, memory: -(-2 * total // memory),
        lambda total, memory: math.ceil(2 * total / memory),
        lambda total, memory: max(1, math.ceil(total / (memory / 2))),
    ],
)
def test_machines_needed_right(right: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]) -> None:
    lesson_00.check_machines_needed(right)
    assert capsys.readouterr().out == "Exercise 1: correct\n"


@pytest.mark.parametrize(
    ("wrong", "got", "expected"),
    [
        (lambda _total, _memory: None, "None", "1"),
        (lambda total, memory: total // memory, "0", "1"),
        (lambda total, memory: max(1, 2 * total // memory), "2", "3"),  # rounds down
        (lambda total, memory: math.ceil(total / memory), "1", "2"),  # fills the memory
        (lambda total, memory: 2 * total // memory + 1, "3", "2"),  # one too many when it fits exactly
        (lambda total, memory: float(math.ceil(2 * total / memory)), "1.0", "1"),
        (lambda _total, _memory: 1, "1", "2"),
    ],
)
def test_machines_needed_wrong(
    wrong: Callable[[int, int], int], got: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lesson_00.check_machines_needed(wrong)
    text = capsys.readouterr().out
    assert text.startswith("Exercise 1: not yet. machines_needed(")
    assert f"got       {got}\n" in text
    assert f"expected  {expected}\n" in text
    assert "hint: " in text


ANSWERS = solutions("00")
unseen = ANSWERS.unseen


def test_unseen_right(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_00.check_unseen(unseen)
    assert capsys.readouterr().out == "Exercise 2: correct\n"


def classes_not_nodes(labels: Tensor, train: Tensor, test: Tensor) -> int:
    return len(set(labels[test].tolist()) - set(labels[train].tolist()))


def not_in_train(_labels: Tensor, train: Tensor, _test: Tensor) -> int:
    return int((~train).sum())


@pytest.mark.parametrize(("wrong", "got"), [(classes_not_nodes, "1"), (not_in_train, "4"), (lambda *_: None, "None")])
def test_unseen_wrong(wrong: Callable[..., int], got: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson_00.check_unseen(wrong)
    text = capsys.readouterr().out
    assert text.startswith("Exercise 2: not yet. labels [0, 0, 1, 2, 2, 2]")
    assert f"got       {got}\n  expected  2\n" in text


def test_a_number_in_a_tensor_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_00.check_unseen(lambda *masks: torch.tensor(unseen(*masks)))
    assert capsys.readouterr().out == "Exercise 2: correct\n"


def test_an_error_of_the_reader_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lesson_00.check_unseen(lambda _labels: 0)  # too few arguments
    assert "Your code raised TypeError" in capsys.readouterr().out


def test_the_map_shows_the_lessons_that_there_are() -> None:
    titles = [title for _level, _where, lessons in start.LEVELS for title in lessons]
    assert {int(path.name[:2]) for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")} == set(range(len(titles)))


def test_stubs_and_solutions_share_their_signatures() -> None:
    """The committed outputs: stubs fail their checkers, solutions pass, and no function was renamed."""
    found = {}
    for path in (NOTEBOOKS / "00_start_here.ipynb", NOTEBOOKS / "solutions" / "00_start_here.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        text = "".join("".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", []))
        definitions = [
            f"def {name}(" + code.split(f"def {name}(")[1].split(":\n")[0] for name in ("machines_needed", "unseen")
        ]
        found[path.parent.name] = (definitions, re.findall(r"Exercise \d: (?:correct|not yet)", text))
    lesson, solution = found["notebooks"], found["solutions"]
    assert lesson[0] == solution[0]
    assert lesson[1] == ["Exercise 1: not yet", "Exercise 1: not yet", "Exercise 2: not yet"]
    assert solution[1] == ["Exercise 1: correct", "Exercise 2: correct"]
