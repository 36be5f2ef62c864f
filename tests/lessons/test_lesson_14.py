"""The checkers of lesson 14 distinguish right and wrong answers."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from solution_support import answer_tests, read_program, solutions
from torch import Tensor

from support.exercises import lesson_14

ANSWERS = solutions("14")
machine_bytes = ANSWERS.machine_bytes


def summed(ids: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows, means = ANSWERS.merge_gradients(ids, gradients)
    return rows, means * torch.cat(ids).unique(return_counts=True)[1][:, None]


SIZES = {
    "stub": (lambda *_: None, r"got       None\n  expected  \[772000, 772000\]"),
    "rows alone": (lambda n, w, _o: [4 * c * w for c in n], "This counts only the rows"),
    "as Adam of torch": (lambda n, w, _o: [12 * c * w for c in n], "number of steps of each row"),
    "half of the state": (lambda n, w, _o: [8 * c * w for c in n], "hint: A float32 has four bytes"),
    "all on each": (lambda n, w, o: [sum(machine_bytes(n, w, o))] * len(n), "got"),
}
test_right_size, test_wrong_size = answer_tests(lesson_14.check_machine_bytes, [machine_bytes], SIZES)

MERGES = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    "only where all ranks have rows": (
        lambda i, g: ANSWERS.merge_gradients(i, g) if all(map(len, i)) else (i[0], g[0] * 2),
        "merged gradients",
    ),
    "only where each rank has one row": (
        lambda i, g: ANSWERS.merge_gradients(i, g) if max(map(len, i)) == 1 else (torch.cat(i), torch.cat(g)),
        "updated rows",
    ),
    "the sum": (summed, r"\[8.0\]\n  expected .* \[4.0\]\n  hint: Divide the sum"),
    "by all ranks": (lambda i, g: (summed(i, g)[0], summed(i, g)[1] / len(i)), "not by the world size"),
}
test_right_merge, test_wrong_merge = answer_tests(lesson_14.check_merge_gradients, [ANSWERS.merge_gradients], MERGES)


# Exercise 3: the class of the program, with fakes of DGL's embedding and optimizer.


class Table:
    """A fake DistEmbedding. A row that is written twice keeps the last value."""

    def __init__(self, rows: int) -> None:
        self.weight = torch.zeros(rows, 2)


class Optimizer:
    """A fake of DGL's base class."""

    _lr, _world_size = 0.5, 2


def update_of(source: str) -> Callable[..., None]:
    """Return the method ``update`` of a program's SparseSGD."""
    found: dict[str, Any] = {"torch": torch, "DistSparseGradOptimizer": Optimizer}
    exec(re.search(r"class SparseSGD.*?(?=\n\n\n)", source, re.S)[0], found)
    return found["SparseSGD"]().update


SOLUTION = read_program("14", "exercise_14_3.py")
BODY = re.search(r'self\._lr\."""\n(.*?)\n\n\n', SOLUTION, re.S)[1]


@pytest.fixture
def updated(tmp_path: Path) -> Callable[[str | None], tuple[str]]:
    """Return the output of the program with another body of ``update`` and the gradients of both ranks."""

    def write(body: str | None) -> tuple[str]:
        program = tmp_path / "exercise_14_3.py"
        if body is None:
            return (str(program),)
        update, table = update_of(SOLUTION.replace(BODY, body)), Table(12_245)
        gradients = {int(node): both for node, both in lesson_14.GRADIENTS.items()}
        pairs = [(node, both[rank]) for rank in range(2) for node, both in gradients.items() if both[rank] is not None]
        ids, values = torch.tensor([node for node, _ in pairs]), torch.tensor([value for _, value in pairs])
        for _step in range(2):
            update(ids, values[:, None].expand(-1, 2), table)
        program.write_text("")
        os.utime(program, (0, 0))
        (tmp_path / "out").mkdir()
        found = {node: table.weight[node].tolist() for node in gradients}
        (tmp_path / "out" / "exercise_14_3.json").write_text(json.dumps(found))
        return (str(program),)

    return write


UNIQUE = "        rows, place, count = idx.unique(return_inverse=True, return_counts=True)\n"
TOTAL = "        total = torch.zeros(len(rows), 2).index_add_(0, place, grad)\n"
WRONG_PROGRAMS = {
    "the stub": ("        emb.weight[idx] = emb.weight[idx] - self._lr * grad", "One gradient is lost"),
    "the sum": (UNIQUE + TOTAL + "        emb.weight[rows] -= self._lr * total", "This is the sum"),
    "DGL's mean": (
        UNIQUE + TOTAL + "        emb.weight[rows] -= self._lr * total / count[:, None]",
        "mean over the ranks that have the row",
    ),
    "uphill": (UNIQUE + TOTAL + "        emb.weight[rows] += self._lr * total / 2", "divided by self._world_size"),
    "no rate": (UNIQUE + TOTAL + "        emb.weight[rows] -= total / 2", "got"),
    "only rows of both": (
        UNIQUE + TOTAL + "        emb.weight[rows[count > 1]] -= self._lr * total[count > 1] / 2",
        "row of node 1",
    ),
    "no program": (None, "exercise_14_3.py exists"),
    "nothing": ("        pass", r"got       \[0.0, 0.0\]"),
}


test_right_program, test_wrong_program = answer_tests(lesson_14.check_sparse_sgd, [BODY], WRONG_PROGRAMS, "updated")
