"""Lesson 0: its checker accepts correct functions and explains wrong ones, and its map links all lessons."""

import json
import math
import re
from pathlib import Path

from solution_support import answer_tests, solutions

from support.exercises import lesson_00

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def got(value: str, expected: str) -> str:
    """Return the pattern of a complaint with these numbers."""
    return rf"not yet\. machines_needed\(.*\n  got       {value}\n  expected  {expected}\n  hint: "


RIGHT = [
    solutions("00").machines_needed,
    lambda total, memory: max(1, math.ceil(total / (memory / 2))),
    lambda total, memory: float(math.ceil(2 * total / memory)),
]
WRONG = {
    "stub": (lambda *_: None, got("None", "1")),
    "fills the memory": (lambda total, memory: total // memory, got("0", "1")),
    "rounds down": (lambda total, memory: max(1, 2 * total // memory), got("2", "3")),
    "fills the memory, rounds up": (lambda total, memory: math.ceil(total / memory), got("1", "2")),
    "one too many when it fits exactly": (lambda total, memory: 2 * total // memory + 1, got("3", "2")),
    "not rounded": (lambda total, memory: 2 * total / memory, got(r"0\.375", "1")),
}
test_right_machines, test_wrong_machines = answer_tests(lesson_00.check_machines_needed, RIGHT, WRONG)


def test_the_map_links_every_lesson():
    cells = json.loads((NOTEBOOKS / "00_start_here.ipynb").read_text())["cells"]
    tables = ["".join(cell["source"]) for cell in cells if "| what you build |" in "".join(cell["source"])]
    linked = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", "".join(tables))
    assert sorted(["00_start_here.ipynb", *linked]) == sorted(path.name for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
