"""The checkers of lesson 4 accept right answers and name wrong ones; its pictures can be drawn."""

from __future__ import annotations

import dgl
import pytest
import torch
from solution_support import solutions

from support.exercises import lesson_04
from support.plots import partitioning

ANSWERS = solutions("04")
owner = ANSWERS.owner
original_order = ANSWERS.original_order
halo_nodes = ANSWERS.halo_nodes


def test_right_answers(capsys):
    lesson_04.check_owner(owner)
    lesson_04.check_original_order(original_order)
    lesson_04.check_halo_nodes(halo_nodes)
    assert capsys.readouterr().out == "Exercise 1: correct\nExercise 2: correct\nExercise 3: correct\n"


def owner_with_end(ranges, ids):
    return torch.searchsorted(torch.tensor([end for _first, end in ranges]), ids)


def owner_equal_parts(ranges, ids):
    return ids // (ranges[-1][1] // len(ranges))


def in_place(rows, node_map):
    rows[node_map] = rows.clone()
    return rows


def halo_with_repeats(graph, part_of, part):
    src, dst = graph.edges()
    return src[(part_of[dst] == part) & (part_of[src] != part)].sort().values


def halo_at_the_other_end(graph, part_of, part):
    src, dst = graph.edges()
    return dst[(part_of[src] == part) & (part_of[dst] != part)].unique()


WRONG = {
    "owner, stub": (lesson_04.check_owner, lambda _ranges, _ids: None, "None", "[0, 0, 1, 1]"),
    "owner, end counted in": (lesson_04.check_owner, owner_with_end, "[0, 0, 0, 1]", "[0, 0, 1, 1]"),
    "owner, equal parts": (lesson_04.check_owner, owner_equal_parts, "[0, 0, 1, 2]", "[0, 0, 1, 1]"),
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
    "halo, repeated": (lesson_04.check_halo_nodes, halo_with_repeats, "[0, 4, 4]", "[0, 4]"),
    "halo, other end": (lesson_04.check_halo_nodes, halo_at_the_other_end, "[]", "[0, 4]"),
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


def test_pictures():
    groups = [0, 1, 2] * 4
    graph = dgl.to_bidirected(dgl.graph((range(11), range(1, 12))))
    part_of = torch.tensor(groups)
    assert len(set(partitioning.positions(groups))) == 12
    figure = partitioning.coloured_parts(graph, groups, {"a": part_of, "b": torch.arange(12) // 4})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["a: 11 of 11 pairs of neighbours cut", "b: 2 of 11 pairs of neighbours cut"]
    node_map = torch.arange(12).flip(0)
    stored = dgl.in_subgraph(graph, [0, 3, 6, 9])
    stored.edata["inner_edge"] = torch.ones(stored.num_edges(), dtype=torch.uint8)
    stored.ndata["part_id"] = part_of
    ids = torch.arange(12)
    for drawn in (
        partitioning.renumbering(node_map, [[0, 4], [4, 8], [8, 12]]),
        partitioning.one_part(graph, groups, stored, ids, 0),
        partitioning.shares(ids, 6, {"even": ids.chunk(2)}),
    ):
        drawn.draw_without_rendering()
