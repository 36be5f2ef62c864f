"""The checkers of lesson 0: they accept a right function and say what is wrong with a wrong one."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from solution_support import assert_not_yet, solutions, verdict

from support.exercises import lesson_00
from tutorial_lib.data import load_dataset

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize(
    "right",
    [
        solutions("00").machines_needed,
        lambda total, memory: torch.tensor(-(-2 * total // memory)),
        lambda total, memory: -(-2 * total // memory),
        lambda total, memory: math.ceil(2 * total / memory),
        lambda total, memory: max(1, math.ceil(total / (memory / 2))),
        lambda total, memory: float(math.ceil(2 * total / memory)),
        lambda total, memory: np.ceil(2 * total / memory),
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
        (lambda _total, _memory: 1, "1", "2"),
    ],
)
def test_machines_needed_wrong(wrong, got, expected, capsys):
    lesson_00.check_machines_needed(wrong)
    text = capsys.readouterr().out
    assert text.startswith("Exercise 1: not yet. machines_needed(")
    assert f"got       {got}\n" in text
    assert f"expected  {expected}\n" in text
    assert "hint: " in text


@pytest.fixture(scope="module")
def graph():
    return load_dataset("synthetic-products", scale=0.01).graph


def job(numbers: list[object], text: str) -> list[str]:
    """What a job prints whose ranks say these numbers, among the lines of launch."""
    said = [f"[machine-{rank} 0] rank {rank}: in all {number} {text}" for rank, number in enumerate(numbers)]
    return [
        "    2.3 s  DGL servers are loading their parts",
        *reversed(said),
        "machine-0: sent 315.3 kB, logs in runs/x",
    ]


def edges_that_join_equal_classes(graph, nodes) -> int:
    sources, targets = graph.in_edges(nodes)
    return int((graph.ndata["label"][sources] == graph.ndata["label"][targets]).sum())


EDGES = "edges join equal classes"


@pytest.mark.parametrize("form", ["{}", "tensor({})", "{:_}", "{:,}", "{}.0"])
def test_test_edges_right(form, graph, capsys):
    right = edges_that_join_equal_classes(graph, graph.ndata["test_mask"].nonzero().flatten())
    said = verdict(capsys, lesson_00.check_test_edges, job([form.format(right)] * 2, EDGES))
    assert said == "Exercise 2: correct\n"


def test_test_edges_wrong(graph, capsys):
    test = graph.ndata["test_mask"].nonzero().flatten()
    right, half = (edges_that_join_equal_classes(graph, nodes) for nodes in (test, test[: len(test) // 2]))
    train = edges_that_join_equal_classes(graph, graph.ndata["train_mask"].nonzero().flatten())
    wrong = {
        "nothing changed": job([train, train], EDGES),
        "no all_reduce": job([half, right - half], EDGES),
        "only rank 0 has the sum": job([right, right - half], EDGES),
        "added twice": job([2 * right, 2 * right], EDGES),
        "every edge into a test node": job([len(graph.in_edges(test)[0])] * 2, EDGES),
        "one rank says nothing": job([right], EDGES),
        "the job failed": ["error: trainer 0 (rank 0) on machine-0: NameError: name 'rank' is not defined"],
        "another text": job([right, right], "edges"),
    }
    for lines in wrong.values():
        assert_not_yet(verdict(capsys, lesson_00.check_test_edges, lines), "hint: ")


UNSEEN = "test nodes are of an unseen class"


def unseen_by_shares(graph) -> tuple[int, list[int]]:
    """The right number; and what two ranks count when each knows the classes of its own training nodes only."""
    label = graph.ndata["label"]
    train, test = (graph.ndata[mask].nonzero().flatten() for mask in ("train_mask", "test_mask"))

    def count(train, test) -> int:
        return int((~torch.isin(label[test], label[train].unique())).sum())

    halves = [count(a, b) for a, b in zip(train.split(len(train) // 2), test.split(len(test) // 2 + 1), strict=True)]
    return count(train, test), halves


def test_unseen_right(graph, capsys):
    right, _ = unseen_by_shares(graph)
    assert right > 0
    assert verdict(capsys, lesson_00.check_unseen, job([right, right], UNSEEN)) == "Exercise 3: correct\n"


def test_unseen_wrong(graph, capsys):
    right, halves = unseen_by_shares(graph)
    assert sum(halves) > right  # a class that only the other rank has seen
    wrong = {
        "nothing written": [0, 0],
        "each rank's own classes": [sum(halves), sum(halves)],
        "no sum at all": halves,
        "no second sum": [right // 3, right - right // 3],
        "classes, not nodes": [2, 2],
    }
    for numbers in wrong.values():
        said = verdict(capsys, lesson_00.check_unseen, job(numbers, UNSEEN))
        assert_not_yet(said, "what ranks 0 and 1 said")
        assert str(right) not in said.replace(str(numbers), "")  # the answer is for the reader to find
    assert_not_yet(verdict(capsys, lesson_00.check_unseen, []), "ranks that said")


def test_the_map_links_every_lesson():
    cells = json.loads((NOTEBOOKS / "00_start_here.ipynb").read_text())["cells"]
    (table,) = ["".join(cell["source"]) for cell in cells if "| what you build |" in "".join(cell["source"])]
    linked = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", table)
    assert ["00_start_here.ipynb", *linked] == sorted(path.name for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def test_the_exercises_start_from_the_program_of_the_lesson():
    """Exercise 2 differs from first.py by what the exercise does not need; its solution by one word from the stub."""
    programs = {}
    for folder in (NOTEBOOKS, NOTEBOOKS / "solutions"):
        cells = json.loads((folder / "00_start_here.ipynb").read_text())["cells"]
        sources = ["".join(cell["source"]) for cell in cells]
        (programs[folder.name],) = [text for text in sources if text.startswith("%%writefile scripts/exercise_00_2")]
    stub, solution = programs["notebooks"], programs["solutions"]
    assert stub.replace("train_mask", "test_mask") == solution
    first = (NOTEBOOKS / "scripts" / "first.py").read_text().replace(" ", "")
    lines = [line.strip() for line in stub.splitlines()[1:] if "node_split" not in line]
    assert all(line.replace(" ", "") in first for line in lines)
