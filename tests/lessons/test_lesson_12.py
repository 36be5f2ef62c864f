"""The checkers of lesson 12 distinguish right and wrong answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_12
from tutorial_lib.data import load_dataset

plan_machines = solutions("12").plan_machines


def _in_place(rows: torch.Tensor, node_map: torch.Tensor) -> torch.Tensor:
    for i, node in enumerate(node_map.tolist()):
        rows[node] = rows[i]
    return rows


RIGHT_ORDERS = {
    "written": lambda rows, node_map: torch.empty_like(rows).scatter(0, node_map, rows),
    "read": lambda rows, node_map: rows[node_map.argsort()],
    "numpy": lambda rows, node_map: rows.numpy()[np.argsort(node_map.numpy())],
}
WRONG_ORDERS = {
    "stub": (lambda rows, _map: rows, r"node_map\[i\] of the data set\. Write it to that row"),
    "the other way": (lambda rows, node_map: rows[node_map], "correct predictions of test nodes"),
    "in place": (_in_place, "of a new tensor"),
    "shifted": (lambda rows, node_map: rows[node_map.argsort()].roll(1), "correct predictions of test nodes"),
    "floats": (lambda rows, node_map: rows[node_map.argsort()].float(), "got +'torch.float32'"),
    "a column": (lambda rows, node_map: rows[node_map.argsort()][:, None], r"got +\(24490, 1\)"),
    "nobody": (lambda rows, _map: rows[:0], r"got +\(0,\)"),
    "not run": (None, "Run the program"),
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Callable[..., Any]], tuple[str]]:
    """Return a program and its file with the result of a function, for machines with 3 of 4 correct nodes."""

    def write(function: Callable[..., Any] | None) -> tuple[str]:
        program, out = tmp_path / "program.py", tmp_path / "out"
        program.write_text("")
        out.mkdir()
        if function is not None:
            graph = load_dataset("synthetic-products", scale=lesson_12.SCALE).graph
            generator = torch.Generator().manual_seed(0)
            node_map = torch.randperm(graph.num_nodes(), generator=generator)
            label, test = graph.ndata["label"], graph.ndata["test_mask"].bool()
            predicted = torch.where(torch.rand(len(label), generator=generator) < 0.75, label, label + 1)
            rows, right = function(predicted[node_map], node_map), int((predicted == label)[test].sum())
            np.savez(out / "exercise_12_1.npz", predictions=np.asarray(rows), right=right)
        return (str(program),)

    return write


test_right_order, test_wrong_order = answer_tests(lesson_12.check_to_original, RIGHT_ORDERS, WRONG_ORDERS, "written")


def _rounded_down(nodes, edges, train, widths, machines, batch, remote) -> tuple[int, int]:
    return nodes // machines * sum(widths) * 4 + edges // machines * 32, 0


def _one_rank(**counts: Any) -> tuple[int, int]:
    memory, wire = plan_machines(**counts)
    return memory, wire // counts["machines"]


def _all_widths(**counts: Any) -> tuple[int, int]:
    memory, wire = plan_machines(**counts)
    return memory, wire // counts["widths"][0] * sum(counts["widths"])


WRONG_PLANS = {
    "stub": (lambda **_: None, "got +'NoneType'"),
    "a number": (lambda **_: 7, "got +'int'"),
    "rounded down": (_rounded_down, r"(?s)machines 2.*got +344000.*expected +344080.*Round both up"),
    "one rank": (_one_rank, r"over the network in an epoch\n +got +4800\n +expected +9600"),
    "all layers on the wire": (_all_widths, "over the network in an epoch"),
    "features alone": (lambda **c: plan_machines(**{**c, "widths": c["widths"][:1]}), "in the memory of a machine"),
}


test_right_plan, test_wrong_plan = answer_tests(lesson_12.check_plan_machines, [plan_machines], WRONG_PLANS)
