"""What a checker says of code that raises: which line of the learner's own it was."""

import importlib.util
import linecache
import types
from pathlib import Path
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
    """As IPython runs a cell: there is no such file, but its lines are known."""
    name = "/nowhere/ipykernel_1/123.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("__main__")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def from_file(folder: Path, source: str) -> Any:
    (folder / "exercise_12_2.py").write_text(source)
    spec = importlib.util.spec_from_file_location("exercise_12_2", folder / "exercise_12_2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", ["your cell", "exercise_12_2.py"])
def test_an_exception_is_shown_with_its_line(place, tmp_path, capsys):
    module = from_cell(SOURCE) if place == "your cell" else from_file(tmp_path, SOURCE)
    lesson_12.check_plan_machines(module.plan_machines)
    assert capsys.readouterr().out == f"{WRONG}  line 4 of {place}:  return torch.stack(values)\n"


def test_where_no_line_is_the_learner_s_none_is_shown(capsys):
    lesson_12.check_plan_machines(3)
    assert capsys.readouterr().out == "Exercise 2: not yet. Your code raised TypeError: 'int' object is not callable\n"
