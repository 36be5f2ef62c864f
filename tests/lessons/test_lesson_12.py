"""The checkers of lesson 12 know right from wrong; the program of its exercise runs on two machines; its pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import assert_not_yet, solutions, verdict

from support.exercises import lesson_12
from support.plots import whole_run as plots
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
    "stub": (lambda rows, _map: rows, r"node_map\[i\] of the data set: write it there"),
    "the other way": (lambda rows, node_map: rows[node_map], "test nodes that are right"),
    "in place": (_in_place, "into a new tensor"),
    "sorted": (lambda rows, _map: rows.sort().values, "test nodes that are right"),
    "shifted": (lambda rows, node_map: rows[node_map.argsort()].roll(1), "test nodes that are right"),
    "floats": (lambda rows, node_map: rows[node_map.argsort()].float(), "got +'torch.float32'"),
    "a column": (lambda rows, node_map: rows[node_map.argsort()][:, None], r"got +\(24490, 1\)"),
    "nobody": (lambda rows, _map: rows[:0], r"got +\(0,\)"),
}


@pytest.fixture
def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[..., Any]], str]:
    """What the checker says of a function: its program's file, with machines that are right in three of four nodes."""

    def judge(function: Callable[..., Any]) -> str:
        graph = load_dataset("synthetic-products", scale=lesson_12.SCALE).graph
        generator = torch.Generator().manual_seed(0)
        node_map = torch.randperm(graph.num_nodes(), generator=generator)
        label, test = graph.ndata["label"], graph.ndata["test_mask"].bool()
        predicted = torch.where(torch.rand(len(label), generator=generator) < 0.75, label, label + 1)
        right = int((predicted == label)[test].sum())
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "program.py").write_text("")
        rows = function(predicted[node_map], node_map)
        np.savez(tmp_path / "out" / "exercise_12_1.npz", predictions=np.asarray(rows), right=right)
        return verdict(capsys, lesson_12.check_to_original, str(tmp_path / "program.py"))

    return judge


@pytest.mark.parametrize("function", RIGHT_ORDERS.values(), ids=RIGHT_ORDERS.keys())
def test_right_order(function, judged):
    assert judged(function) == "Exercise 1: correct\n"


@pytest.mark.parametrize(("function", "says"), WRONG_ORDERS.values(), ids=WRONG_ORDERS.keys())
def test_wrong_order(function, says, judged):
    assert_not_yet(judged(function), says)


def test_a_program_that_was_not_run(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "program.py").write_text("")
    assert_not_yet(verdict(capsys, lesson_12.check_to_original, str(tmp_path / "program.py")), "run the program")


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
    "rounded down": (_rounded_down, r"machines 2.*got +344000.*expected +344080.*rounded up"),
    "one rank": (_one_rank, r"on the wire in an epoch\n +got +4800\n +expected +9600"),
    "all layers on the wire": (_all_widths, "on the wire in an epoch"),
    "features alone": (lambda **c: plan_machines(**{**c, "widths": c["widths"][:1]}), "in the memory of a machine"),
}


def test_right_plan(capsys):
    assert verdict(capsys, lesson_12.check_plan_machines, plan_machines) == "Exercise 2: correct\n"


@pytest.mark.parametrize(("answer", "says"), WRONG_PLANS.values(), ids=WRONG_PLANS.keys())
def test_wrong_plan(answer, says, capsys):
    assert_not_yet(verdict(capsys, lesson_12.check_plan_machines, answer), f"(?s){says}")


def test_pictures_say_what_they_show():
    steps = plots.steps_figure()
    words = " ".join(text.get_text() for text in steps.axes[0].texts)
    for word in ("machines", "partition", "copy and launch", "evaluation", "predictions.npy", "report.html"):
        assert word in words
    runs = {
        count: [{"epoch": k, "val_accuracy": 0.1 * k, "seconds": 9.0 if k == 0 else count + k} for k in range(4)]
        for count in (1, 2)
    }
    accuracy, seconds = plots.scaling_figure(runs, 2).axes
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["1 machine", "2 machines"]
    assert [line.get_ydata().tolist() for line in accuracy.lines] == [pytest.approx([0, 0.1, 0.2, 0.3])] * 2
    dots = [list(line.get_ydata()) for line in seconds.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert dots == [[2, 3, 4], [3, 4, 5]]  # without the first epochs
    (middles,) = [list(line.get_ydata()) for line in seconds.lines if line.get_marker() == "s"]
    assert middles == [3, 4]
