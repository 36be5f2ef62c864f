"""The checkers of lesson 15 know right from wrong; its chunks hold the graph; its pictures draw."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
from solution_support import assert_not_yet, lesson_code, solutions, verdict

from support.exercises import lesson_15
from support.lessons import heterographs
from support.plots import heterographs as plots

ANSWERS = solutions("15")
IN_CELLS = lesson_code("15", "write_chunks", "dispatch")
typed_ids = ANSWERS.typed_ids
pulled_bytes = ANSWERS.pulled_bytes


def relational_sum(edges: Any, rows: Any, weights: Any, target: str, count: int, *, mean: bool = True) -> torch.Tensor:
    total = torch.zeros(count, 2)
    for relation, (start, end) in edges.items():
        if relation[2] == target:
            gathered = torch.zeros(count, 2).index_add_(0, end, rows[relation[0]][start])
            degree = torch.zeros(count).index_add_(0, end, torch.ones(len(end))).clamp(min=1)
            total += (gathered / degree[:, None] if mean else gathered) @ weights[relation]
    return total


RIGHT = {
    lesson_15.check_typed_ids: typed_ids,
    lesson_15.check_relational_sum: relational_sum,
    lesson_15.check_pulled_bytes: pulled_bytes,
}
WRONG = [
    (lesson_15.check_typed_ids, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    (
        lesson_15.check_typed_ids,
        lambda r, i: (typed_ids(r, i)[0], i),
        r"type-wise ids\n  got       \[0, 2, 3, 7, 8, 9, 10, 11\]\n  expected  \[0, 2, 0, 4, 3, 4, 5, 6\]",
    ),
    (
        lesson_15.check_typed_ids,
        lambda r, i: (["a"] * len(i), typed_ids(r, i)[1]),
        r"types\n  got       \['a', 'a', 'a'",
    ),
    (lesson_15.check_relational_sum, lambda *_: None, r"got       None\n  expected  tensor \(3, 2\)"),
    (lesson_15.check_relational_sum, lambda *a: relational_sum(*a, mean=False), "the mean over the neighbours"),
    (
        lesson_15.check_relational_sum,
        lambda e, r, w, t, c: relational_sum({k: v for k, v in e.items() if k[1] == "r"}, r, w, t, c),
        "for each relation into the type",
    ),
    (lesson_15.check_pulled_bytes, lambda *_: None, "got       None\n  expected  80"),
    (lesson_15.check_pulled_bytes, lambda n, w, r, p: pulled_bytes(n, w, r, p) // 4, "four bytes"),
    (lesson_15.check_pulled_bytes, lambda n, _w, r, p: pulled_bytes(n, dict.fromkeys(n, 8), r, p), "its own width"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT.items(), ids=lambda f: f.__name__)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


@pytest.mark.parametrize(("check", "answer", "complaint"), WRONG)
def test_wrong_answer(
    check: Callable[[Any], None], answer: Any, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_not_yet(verdict(capsys, check, answer), complaint)


def test_chunks_hold_the_graph_and_dispatch_sends_each_edge_to_the_owner_of_its_end(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = {name: torch.randint(0, 9, (2, count), generator=generator) for name, count in (("r", 25), ("s", 4))}
    graph = dgl.heterograph(
        {("a", "r", "b"): tuple(ends["r"]), ("b", "s", "a"): tuple(ends["s"])}, num_nodes_dict={"a": 9, "b": 9}
    )
    about = IN_CELLS.write_chunks(graph, "g", tmp_path / "in", chunk=10)
    assert json.loads((tmp_path / "in" / "metadata.json").read_text()) == about
    assert about["num_edges_per_type"] == [25, 4]
    pieces = [np.loadtxt(tmp_path / "in" / file, np.int64) for file in about["edges"]["a:r:b"]["data"]]
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    together = np.concatenate(pieces)
    assert np.array_equal(together.T, ends["r"].numpy())

    part_of = {"a": np.arange(9) % 2, "b": np.arange(9) // 5}
    counts, most = IN_CELLS.dispatch(tmp_path / "in", part_of, 2, tmp_path / "out")
    assert most == 10
    for part in range(2):
        mine = np.fromfile(tmp_path / "out" / f"part{part}" / "a-r-b.int64", np.int64).reshape(-1, 2)
        assert np.array_equal(mine, together[part_of["b"][together[:, 1]] == part])
        assert counts["a:r:b"][part] == len(mine)
    assert sum(counts["b:s:a"]) == 4


def test_nodes_are_counted_where_they_lie() -> None:
    class Book:
        partid = 1

        def nid2partid(self, ids: torch.Tensor, name: str) -> torch.Tensor:
            return ids // {"a": 10, "b": 100}[name]

    ids = torch.tensor([5, 12, 17, 130])
    assert heterographs.count_by_place(Book(), ids, "a") == [2, 2]
    assert heterographs.count_by_place(Book(), ids, "b") == [1, 3]


def test_pictures() -> None:
    relations = {("author", "writes", "paper"): 3, ("paper", "written-by", "author"): 3, ("paper", "cites", "paper"): 2}
    figure = plots.metagraph({"author": 5, "field": 2, "paper": 3}, relations, ["paper"])
    words = {text.get_text() for text in figure.axes[0].texts}
    assert {"writes", "written-by", "cites", "paper\n3 nodes\nfeatures, labels", "field\n2 nodes\nno features"} <= words
    figure = plots.id_line({"a": [[0, 3], [8, 10]], "b": [[3, 8], [10, 12]]})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"3 to\n4", "5 to\n6", "part 0", "part 1"} <= set(texts)  # type-wise ids go on in the second part
