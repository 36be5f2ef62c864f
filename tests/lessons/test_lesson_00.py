"""Lesson 0: its checker accepts correct functions and explains wrong ones, and its map links all lessons."""

import json
import math
import re
from pathlib import Path

import pytest
from solution_support import solutions

from support.exercises import lesson_00

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize(
    "right",
    [
        solutions("00").machines_needed,
        lambda total, memory: max(1, math.ceil(total / (memory / 2))),
        lambda total, memory: float(math.ceil(2 * total / memory)),
    ],
)
def test_machines_needed_right(right, capsys):
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
        (lambda total, memory: 2 * total / memory, "0.375", "1"),  # not rounded
    ],
)
def test_machines_needed_wrong(wrong, got, expected, capsys):
    lesson_00.check_machines_needed(wrong)
    text = capsys.readouterr().out
    assert text.startswith("Exercise 1: not yet. machines_needed(")
    assert f"got       {got}\n" in text
    assert f"expected  {expected}\n  hint: " in text


def test_the_map_links_every_lesson():
    cells = json.loads((NOTEBOOKS / "00_start_here.ipynb").read_text())["cells"]
    tables = ["".join(cell["source"]) for cell in cells if "| what you build |" in "".join(cell["source"])]
    linked = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", "".join(tables))
    assert ["00_start_here.ipynb", *linked] == sorted(path.name for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
