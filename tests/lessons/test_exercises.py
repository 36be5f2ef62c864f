"""The checkers' reports about exceptions name the line of the learner."""

import importlib
import linecache
import types
from typing import Any

import pytest

from support.exercises import lesson_12

SOURCE = """import torch

def sums(values):
    return torch.stack(values)

def plan_machines(nodes, edges, train, widths, machines, batch, remote):
    rows = torch.tensor(nodes)
    return sums([rows, edges])
"""
WRONG = "Exercise 2: not yet. Your code raised TypeError: expected Tensor as element 1 in argument 0, but got int\n"


def from_cell(source: str) -> Any:
    """Run source code as IPython does, without a file but with known lines."""
    name = "/nowhere/ipykernel_1/123.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("__main__")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("place", ["your cell", "exercise_12_2.py"])
def test_exception_shows_line_of_learner(place, tmp_path, capsys, monkeypatch):
    if place == "your cell":
        module = from_cell(SOURCE)
    else:
        (tmp_path / place).write_text(SOURCE)
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("exercise_12_2")
    lesson_12.check_plan_machines(module.plan_machines)
    assert capsys.readouterr().out == f"{WRONG}  line 4 of {place}:  return torch.stack(values)\n"


def test_exception_outside_learner_code_shows_no_line(capsys):
    lesson_12.check_plan_machines(3)
    assert capsys.readouterr().out == "Exercise 2: not yet. Your code raised TypeError: 'int' object is not callable\n"
