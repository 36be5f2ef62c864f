"""The checkers' reports about exceptions name the line of the learner."""

import importlib
import linecache
import types
from typing import Any

import pytest

from support.exercises import lesson_16

SOURCE = """import torch

def sums(values):
    return torch.stack(values)

def size_job(graph, node_memory, trainers, samplers, server, trainer):
    rows = torch.tensor(graph)
    return sums([rows, trainers])
"""
WRONG = "Exercise 2: not yet. Your code raised TypeError: expected Tensor as element 1 in argument 0, but got int\n"


def from_cell(source: str) -> Any:
    """Run source code as IPython does, without a file but with known lines."""
    name = "/nowhere/ipykernel_1/123.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("__main__")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("place", ["your cell", "exercise_16_2.py"])
def test_exception_shows_line_of_learner(place, tmp_path, capsys, monkeypatch):
    if place == "your cell":
        module = from_cell(SOURCE)
    else:
        (tmp_path / place).write_text(SOURCE)
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module("exercise_16_2")
    lesson_16.check_size_job(module.size_job)
    assert capsys.readouterr().out == f"{WRONG}  line 4 of {place}:  return torch.stack(values)\n"


def test_exception_outside_learner_code_shows_no_line(capsys):
    lesson_16.check_size_job(3)
    assert capsys.readouterr().out == "Exercise 2: not yet. Your code raised TypeError: 'int' object is not callable\n"
