"""The checkers of lesson 4 accept right answers and name wrong ones; its pictures can be drawn."""

import json

import dgl
import numpy as np
import pytest
import torch
from solution_support import assert_not_yet, solutions

from support.exercises import lesson_04
from support.plots import partitioning

ANSWERS = solutions("04")
owner = ANSWERS.owner
original_order = ANSWERS.original_order


def test_right_answers(capsys):
    lesson_04.check_owner(owner)
    lesson_04.check_original_order(original_order)
    assert capsys.readouterr().out == "Exercise 1: correct\nExercise 2: correct\n"


def owner_with_end(ranges, ids):
    return torch.searchsorted(torch.tensor([end for _first, end in ranges]), ids)


def owner_equal_parts(ranges, ids):
    return ids // (ranges[-1][1] // len(ranges))


def in_place(rows, node_map):
    rows[node_map] = rows.clone()
    return rows


def owner_last(ranges, ids):
    return torch.full_like(ids, len(ranges) - 1)


def inverse_read(rows, node_map):
    return rows[torch.argsort(node_map)].flip(0)


WRONG = {
    "owner, stub": (lesson_04.check_owner, lambda _ranges, _ids: None, "None", "[0, 0, 1, 1]"),
    "owner, end counted in": (lesson_04.check_owner, owner_with_end, "[0, 0, 0, 1]", "[0, 0, 1, 1]"),
    "owner, equal parts": (lesson_04.check_owner, owner_equal_parts, "[0, 0, 1, 2]", "[0, 0, 1, 1]"),
    "owner, always the last": (lesson_04.check_owner, owner_last, "[1, 1, 1, 1]", "[0, 0, 1, 1]"),
    "owner, a list": (lesson_04.check_owner, lambda r, i: owner(r, i).tolist(), "[0, 0, 1, 1]", "tensor (4,)"),
    "order, upside down": (
        lesson_04.check_original_order,
        inverse_read,
        "[20, 21, 10, 11, 0, 1]",
        "[0, 1, 10, 11, 20, 21]",
    ),
    "order, wrong way": (
        lesson_04.check_original_order,
        lambda rows, node_map: rows[node_map],
        "[10, 11, 20, 21, 0, 1]",
        "[0, 1, 10, 11, 20, 21]",
    ),
    "order, not changed": (
        lesson_04.check_original_order,
        lambda rows, _map: rows,
        "[20, 21, 0, 1, 10, 11]",
        "[0, 1, 10, 11, 20, 21]",
    ),
    "order, in place": (
        lesson_04.check_original_order,
        in_place,
        "[0, 1, 10, 11, 20, 21]",
        "[20, 21, 0, 1, 10, 11]",
    ),
}


@pytest.mark.parametrize(("check", "answer", "got", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answers_are_named(check, answer, got, expected, capsys):
    check(answer)
    lines = capsys.readouterr().out.splitlines()
    assert ": not yet. " in lines[0]
    assert lines[1].startswith("  got ")
    assert got in lines[1]
    assert lines[2].startswith("  expected ")
    assert expected in lines[2]
    assert lines[3].startswith("  hint: ")


def test_an_error_of_the_reader_is_said(capsys):
    lesson_04.check_owner(lambda _ranges, ids: ids[100])
    assert "not yet. Your code raised IndexError" in capsys.readouterr().out


def run_of(tmp_path, **changes):
    """What the program of exercise 3 writes; both machines together have received 7,000,000 bytes."""
    rank = {
        "fanouts": [10, 5],
        "batch_size": 50,
        "steps": 19,
        "sample": 200_000,
        "pull": 2_000_000,
        "update": 1_300_000,
    }
    ranks = [{**rank, **changes.get("rank", {})} for _ in range(changes.get("ranks", 2))]
    file = tmp_path / "result.json"
    file.write_text(json.dumps(ranks))
    return file


@pytest.mark.parametrize(
    "answer", [7_000_000, 6_500_000.0, torch.tensor(7.5e6), np.float32(6.4e6), np.int64(7_600_000)]
)
def test_a_prediction_within_ten_percent(answer, tmp_path, capsys):
    lesson_04.check_prediction(answer, run_of(tmp_path))
    assert capsys.readouterr().out == "Exercise 3: correct\n"


PREDICTIONS = {
    "stub": (None, {}, "your prediction"),
    "a text": ("7 MB", {}, "your prediction"),
    "a pair": ((7_000_000, 19), {}, "your prediction"),
    "one machine only": (3_500_000, {}, "-50%"),
    "rows, not bytes": (17_500, {}, "-100%"),
    "every row remote": (38_600_000, {}, "\\+451%"),
    "the first run": (5_000_000, {}, "-29%"),
    "no gradients": (4_400_000, {}, "-37%"),
    "no number": (float("nan"), {}, "at most 10%"),
    "fan-outs not changed": (7_000_000, {"rank": {"fanouts": [5, 10]}}, "fanouts of rank 0"),
    "batch size not changed": (7_000_000, {"rank": {"batch_size": 100}}, "batch_size of rank 0"),
    "one process": (3_500_000, {"ranks": 1}, "ranks that have written"),
}


@pytest.mark.parametrize(("answer", "changes", "said"), PREDICTIONS.values(), ids=PREDICTIONS.keys())
def test_a_prediction_that_is_off(answer, changes, said, tmp_path, capsys):
    lesson_04.check_prediction(answer, run_of(tmp_path, **changes))
    assert_not_yet(capsys.readouterr().out, said)


def test_a_prediction_of_a_job_that_did_not_run(tmp_path, capsys):
    lesson_04.check_prediction(7_000_000, tmp_path / "result.json")
    assert "Exercise 3: not yet." in (said := capsys.readouterr().out)
    assert "result.json is not there" in said


def test_the_model_of_the_solution():
    """Two rows and one step of two ranks, with the 18,927 parameters that DGL's model really has."""
    assert ANSWERS.model_bytes(2, 1, 0) == 2 * 408 + 2 * 18_927 * 4
    assert ANSWERS.model_bytes(0, 10, 0.5) == 1.5 * 20 * 18_927 * 4


def test_pictures():
    groups = [0, 1, 2] * 4
    graph = dgl.to_bidirected(dgl.graph((range(11), range(1, 12))))
    part_of = torch.tensor(groups)
    assert len(set(partitioning.positions(groups))) == 12
    figure = partitioning.colored_parts(graph, groups, {"a": part_of, "b": torch.arange(12) // 4})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["a: 11 of 11 pairs of neighbors cut", "b: 2 of 11 pairs of neighbors cut"]
    node_map = torch.arange(12).flip(0)
    stored = dgl.in_subgraph(graph, [0, 3, 6, 9])
    stored.edata["inner_edge"] = torch.ones(stored.num_edges(), dtype=torch.uint8)
    stored.ndata["part_id"] = part_of
    for drawn in (
        partitioning.renumbering(node_map, [[0, 4], [4, 8], [8, 12]]),
        partitioning.one_part(graph, groups, stored, torch.arange(12), 0),
    ):
        drawn.draw_without_rendering()
