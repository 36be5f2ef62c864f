"""The checkers of lesson 1: they accept a right function and say what is wrong with a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from solution_support import solutions
from torch import Tensor

from support.exercises import Rows, lesson_01


def said(check: Callable[[Any], None], function: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> str:
    check(function)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "right",
    [
        lambda mask: (~mask.bool()).nonzero().flatten(),
        lambda mask: torch.where(mask == 0)[0],
        lambda mask: torch.tensor([k for k, selected in enumerate(mask.tolist()) if not selected], dtype=torch.int64),
    ],
)
def test_outside_right(right: Callable[[Tensor], Tensor], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(lesson_01.check_outside, right, capsys) == "Exercise 1: correct\n"


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (lambda mask: (~mask).nonzero().flatten(), "tensor (5,) torch.int64 [0, 1, 2, 3, 4]"),  # the trap of the lesson
        (lambda mask: mask.nonzero().flatten(), "tensor (2,) torch.int64 [1, 4]"),
        (lambda mask: (mask == 0).nonzero(), "tensor (3, 1) torch.int64 [0, 2, 3]"),
        (lambda mask: mask == 0, "tensor (5,) torch.bool [True, False, True, True, False]"),
        (lambda _mask: torch.tensor([0, 2, 3]), "tensor (3,) torch.int64 [0, 2, 3]"),  # hard-coded
    ],
)
def test_outside_wrong(wrong: Callable[[Tensor], Tensor], got: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(lesson_01.check_outside, wrong, capsys)
    assert text.startswith("Exercise 1: not yet. ids outside the torch.uint8 mask")
    assert f"got       {got}\n  expected  tensor" in text


def in_pieces(graph: Any, table: Any, rows: int) -> None:
    for ids in torch.arange(graph.num_nodes()).split(rows):
        table[ids] = graph.in_degrees(ids)


def in_slices(graph: Any, table: Any, rows: int) -> None:
    for first in range(0, len(table), rows):
        end = min(first + rows, len(table))
        table[first:end] = graph.in_degrees(torch.arange(first, end))


def one_by_one(graph: Any, table: Any, _rows: int) -> None:
    for node in range(table.shape[0]):
        table[[node]] = graph.in_degrees(torch.tensor([node]))


@pytest.mark.parametrize("right", [in_pieces, in_slices, one_by_one])
def test_write_degrees_right(right: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(lesson_01.check_write_degrees, right, capsys) == "Exercise 2: correct\n"


def all_at_once(graph: Any, table: Any, _rows: int) -> None:
    table[torch.arange(graph.num_nodes())] = graph.in_degrees()


def last_piece_missing(graph: Any, table: Any, rows: int) -> None:
    for first in range(0, graph.num_nodes() - rows + 1, rows):
        table[first : first + rows] = graph.in_degrees(torch.arange(first, first + rows))


def out_degrees(graph: Any, table: Any, rows: int) -> None:
    for ids in torch.arange(graph.num_nodes()).split(rows):
        table[ids] = graph.out_degrees(ids)


def beyond_the_end(_graph: Any, table: Any, rows: int) -> None:
    for first in range(0, len(table), rows):
        table[first : first + rows] = torch.zeros(rows, dtype=torch.int64)


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        (all_at_once, ["rows=2: most rows written at once", "got       5", "expected  2"]),
        (last_piece_missing, ["got       tensor (5,) torch.int64 [1, 3, 0, 0, -1]", "[1, 3, 0, 0, 0]"]),
        (out_degrees, ["got       tensor (5,) torch.int64 [1, 1, 1, 1, 0]", "[1, 3, 0, 0, 0]"]),
        (beyond_the_end, ["Your code raised IndexError"]),
        (lambda *_: None, ["[-1, -1, -1, -1, -1]", "[1, 3, 0, 0, 0]"]),
    ],
)
def test_write_degrees_wrong(wrong: Callable[..., None], lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(lesson_01.check_write_degrees, wrong, capsys)
    assert text.startswith("Exercise 2: not yet.")
    assert all(line in text for line in lines), text


def test_rows_refuses_what_a_dist_tensor_refuses() -> None:
    rows = Rows(torch.full((4,), -1))
    with pytest.raises(RuntimeError, match="dtypes match"):
        rows[torch.tensor([1])] = torch.tensor([1.5])
    with pytest.raises(TypeError):
        rows[[0, 1]] = [3, 4]
    with pytest.raises(IndexError):
        rows[2:6] = torch.zeros(4, dtype=torch.int64)


ANSWERS = solutions("01")
nodes_to_read = ANSWERS.nodes_to_read


def test_nodes_to_read_right(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):  # the draws differ, the answer must not
        assert said(lesson_01.check_nodes_to_read, nodes_to_read, capsys) == "Exercise 3: correct\n"


def not_turned_round(graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    return nodes_to_read(graph, seeds, per_hop[::-1])


def seeds_left_out(graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    return nodes_to_read(graph, seeds, per_hop) - len(seeds)


def upper_bound(_graph: Any, seeds: Tensor, per_hop: list[int]) -> int:
    count = len(seeds)
    for fanout in per_hop:
        count += count * fanout
    return count


@pytest.mark.parametrize(
    ("wrong", "what", "got", "expected"),
    [
        (not_turned_round, "per_hop [4, 2]", "11", "13"),
        (seeds_left_out, "per_hop [3]", "3", "4"),
        (upper_bound, "per_hop [4, 2]", "15", "13"),
    ],
)
def test_nodes_to_read_wrong(
    wrong: Callable[..., int], what: str, got: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(lesson_01.check_nodes_to_read, wrong, capsys)
    assert text.startswith(f"Exercise 3: not yet. a tree of 17 nodes, seeds [0], {what}\n")
    assert f"got       {got}\n  expected  {expected}\n" in text
    assert "outermost hop first" in text
