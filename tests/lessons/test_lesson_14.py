"""The checkers of lesson 14 know right from wrong; its pictures draw."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from program_support import written
from solution_support import assert_not_yet, solutions, verdict
from torch import Tensor

from support.exercises import lesson_14
from support.plots import learned_rows as plots

ANSWERS = solutions("14")
machine_bytes = ANSWERS.machine_bytes


def summed(ids: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, means = ANSWERS.merge_gradients(ids, gradients)
    return rows, means * torch.cat(ids).unique(return_counts=True)[1][:, None]


RIGHT = {
    lesson_14.check_merge_gradients: ANSWERS.merge_gradients,
    lesson_14.check_machine_bytes: machine_bytes,
}
WRONG = [
    (lesson_14.check_machine_bytes, lambda *_: None, r"got       None\n  expected  \[772000, 772000\]"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [4 * c * w for c in n], "these are the rows alone"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [12 * c * w for c in n], "counts the steps of each row"),
    (lesson_14.check_machine_bytes, lambda n, w, _o: [8 * c * w for c in n], "hint: a float32 has four bytes"),
    (lesson_14.check_machine_bytes, lambda n, w, o: [sum(machine_bytes(n, w, o))] * len(n), "got"),
    (
        lesson_14.check_merge_gradients,  # only where all ranks have rows
        lambda i, g: ANSWERS.merge_gradients(i, g) if all(map(len, i)) else (i[0], g[0] * 2),
        "their gradients",
    ),
    (
        lesson_14.check_merge_gradients,  # only where each rank has one row
        lambda i, g: ANSWERS.merge_gradients(i, g) if max(map(len, i)) == 1 else (torch.cat(i), torch.cat(g)),
        "which rows change",
    ),
    (lesson_14.check_merge_gradients, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    (lesson_14.check_merge_gradients, summed, r"\[8.0\]\n  expected .* \[4.0\]\n  hint: the sum"),
    (
        lesson_14.check_merge_gradients,
        lambda i, g: (summed(i, g)[0], summed(i, g)[1] / len(i)),
        "not by that of all ranks",
    ),
    (lesson_14.check_merge_gradients, lambda i, g: (torch.cat(i), torch.cat(g)), "which rows change"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT.items(), ids=lambda f: f.__name__)
def test_right_answer(check, answer, capsys):
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_wrong_answer(check, answer, words, capsys):
    assert_not_yet(verdict(capsys, check, answer), words)


# Exercise 3: the program's class, with a table and an optimizer of this process in the place of DGL's.


class Table:
    """What the exercise sees of a DistEmbedding: a row that is written twice keeps the last value."""

    def __init__(self, rows: int) -> None:
        self.weight = torch.zeros(rows, 2)


class Optimizer:
    """What it sees of DGL's base class."""

    _lr, _world_size = 0.5, 2


def update_of(source: str) -> Callable[..., None]:
    """The method of a program's SparseSGD."""
    found: dict[str, Any] = {"torch": torch, "DistSparseGradOptimizer": Optimizer}
    exec(re.search(r"class SparseSGD.*?(?=\n\n\n)", source, re.S)[0], found)
    return found["SparseSGD"]().update


SOLUTION = written("14", "exercise_14_3.py")
BODY = re.search(r'self\._lr\."""\n(.*?)\n\n\n', SOLUTION, re.S)[1]


def write(folder: Path, body: str) -> str:
    """What the program writes with another body of ``update``: each machine has the gradients of both ranks."""
    update, table = update_of(SOLUTION.replace(BODY, body)), Table(12_245)
    gradients = {int(node): both for node, both in lesson_14.GRADIENTS.items()}
    pairs = [(node, both[rank]) for rank in range(2) for node, both in gradients.items() if both[rank] is not None]
    ids, values = torch.tensor([node for node, _ in pairs]), torch.tensor([value for _, value in pairs])
    for _step in range(2):
        update(ids, values[:, None].expand(-1, 2), table)
    program = folder / "exercise_14_3.py"
    program.write_text("")
    os.utime(program, (0, 0))
    (folder / "out").mkdir()
    found = {node: table.weight[node].tolist() for node in gradients}
    (folder / "out" / "exercise_14_3.json").write_text(json.dumps(found))
    return str(program)


def test_right_program(tmp_path, capsys):
    assert verdict(capsys, lesson_14.check_sparse_sgd, write(tmp_path, BODY)) == "Exercise 3: correct\n"


UNIQUE = "        rows, place, count = idx.unique(return_inverse=True, return_counts=True)\n"
TOTAL = "        total = torch.zeros(len(rows), 2).index_add_(0, place, grad)\n"
WRONG_PROGRAMS = {
    "the stub": ("        emb.weight[idx] = emb.weight[idx] - self._lr * grad", "one of the two gradients is lost"),
    "the sum": (UNIQUE + TOTAL + "        emb.weight[rows] -= self._lr * total", "this is the sum"),
    "DGL's mean": (
        UNIQUE + TOTAL + "        emb.weight[rows] -= self._lr * total / count[:, None]",
        "the mean over the ranks that had the row",
    ),
    "uphill": (UNIQUE + TOTAL + "        emb.weight[rows] += self._lr * total / 2", "divided by self._world_size"),
    "no rate": (UNIQUE + TOTAL + "        emb.weight[rows] -= total / 2", "got"),
    "only rows of both": (
        UNIQUE + TOTAL + "        emb.weight[rows[count > 1]] -= self._lr * total[count > 1] / 2",
        "row of node 1",
    ),
    "nothing": ("        pass", r"got       \[0.0, 0.0\]"),
}


@pytest.mark.parametrize(("body", "said"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS.keys())
def test_wrong_program(body, said, tmp_path, capsys):
    assert_not_yet(verdict(capsys, lesson_14.check_sparse_sgd, write(tmp_path, body)), said)


def test_a_program_that_did_not_run(tmp_path, capsys):
    assert_not_yet(verdict(capsys, lesson_14.check_sparse_sgd, str(tmp_path / "exercise_14_3.py")), "is there")


def test_pictures():
    table, labels = torch.rand(60, 5), torch.arange(60) % 3
    assert "has a gradient of row 0: 6" in " ".join(text.get_text() for text in plots.one_step().axes[0].texts)
    axes = plots.planes({"before": table, "after": table}, labels, [0, 2]).axes
    assert [ax.get_title() for ax in axes] == ["before", "after"]
    assert [len(points.get_offsets()) for points in axes[0].collections] == [20, 20]
