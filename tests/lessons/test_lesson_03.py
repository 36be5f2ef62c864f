"""The checkers of lesson 3 know right from wrong, and its pictures can be drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dgl
import pytest
import torch
from solution_support import solutions, verdict
from torch import Tensor

from support.exercises import lesson_03
from support.plots import sampling

ANSWERS = solutions("03")
edges_sampled = ANSWERS.edges_sampled
most_input_nodes = ANSWERS.most_input_nodes
keep_visible = ANSWERS.keep_visible


def keep_visible_other_order(frontier: dgl.DGLGraph, visible: Tensor) -> dgl.DGLGraph:
    kept = visible[frontier.edges()[0]].nonzero().flatten().flip(0)
    return dgl.edge_subgraph(frontier, kept, relabel_nodes=False, store_ids=False)


def with_ends(frontier: dgl.DGLGraph, visible: Tensor, change: Callable[[Tensor, Tensor], Any]) -> dgl.DGLGraph:
    """The right edges by number and id, but not the right ends."""
    right = keep_visible(frontier, visible)
    graph = dgl.graph(change(*right.edges()), num_nodes=frontier.num_nodes())
    graph.edata[dgl.EID] = right.edata[dgl.EID]
    return graph


CHECKS = (lesson_03.check_edges_sampled, lesson_03.check_most_input_nodes, lesson_03.check_keep_visible)


@pytest.mark.parametrize(
    ("check", "answer"),
    [*zip(CHECKS, (edges_sampled, most_input_nodes, keep_visible), strict=True), (CHECKS[2], keep_visible_other_order)],
)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


WRONG = {
    "stub": (0, lambda *_: None, "got       None"),
    "ignores replace": (0, lambda d, f, _r: d if f == -1 else d.clamp(max=f), r"replace=True\n.*\n.*\[0, 4, 4, 4, 4\]"),
    "-1 as a number": (0, lambda d, f, r: (d > 0) * f if r else d.clamp(max=f), r"fan-out -1.*\n.*\[-1, -1(.|\n)*hint"),
    "a list": (0, lambda d, f, r: edges_sampled(d, f, r).tolist(), r"got       \[0, 1, 3, 4, 4\]\n.*tensor \(5,\)"),
    "empty stub": (1, lambda *_: None, "got       None\n  expected  8"),
    "forgets the seeds": (1, lambda b, f, n: min(n, b * f[0]), "got       6\n  expected  8"),
    "no upper limit": (1, lambda b, f, _n: most_input_nodes(b, f, 10**9), "got       1056000\n  expected  5000"),
    "-1 multiplied": (
        1,
        lambda b, f, n: min(n, b * torch.tensor(f).add(1).prod().item()),
        "got       0\n  expected  700",
    ),
    "third stub": (2, lambda *_: None, "got       'NoneType'"),
    "hides destinations": (2, lambda f, v: dgl.remove_edges(f, (~v[f.edges()[1]]).nonzero().flatten()), "edges"),
    "new edge ids": (
        2,
        lambda f, v: dgl.edge_subgraph(f, v[f.edges()[0]], relabel_nodes=False),
        "dgl.EID(.|\n)*store_ids",
    ),
    "new node ids": (2, lambda f, v: dgl.edge_subgraph(f, v[f.edges()[0]], store_ids=False), "sources|number of nodes"),
    "a node more": (2, lambda f, v: dgl.add_nodes(keep_visible(f, v), 1), "number of nodes"),
    "other sources": (2, lambda f, v: with_ends(f, v, lambda src, dst: (src.flip(0), dst)), "sources of the edges"),
    "other ends": (2, lambda f, v: with_ends(f, v, lambda src, dst: (src, dst.flip(0))), "destinations of the edges"),
    "raises": (2, lambda f, v: f.no_such_thing(v), "Your code raised AttributeError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = verdict(capsys, CHECKS[number], answer)
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


def test_checkers_leave_the_generators_alone(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    lesson_03.check_keep_visible(keep_visible)
    assert torch.equal(torch.rand(1), expected)


def test_pictures() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    edges = (torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0]))
    hops = [(torch.tensor([3]), torch.tensor([0])), (torch.tensor([3, 2]), torch.tensor([0, 3]))]
    figure = sampling.frontier(points, edges, torch.tensor([0]), hops)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["hop 1: 1 nodes ask, 2 are known", "hop 2: 2 nodes ask, 3 are known"]

    figure = sampling.input_nodes([2, 5], {1: [30, 60], 2: [80, 99]}, 10, 100)
    assert "2 hops: 99% of nodes" in {text.get_text() for text in figure.axes[0].texts}
    (ax,) = sampling.losses_compared({"a": [2.0, 1.0], "b": [3.0]}, 1, "title").axes
    assert ax.get_title() == "title"
    assert {line.get_label(): list(line.get_ydata()) for line in ax.lines[:2]} == {"a": [2.0, 1.0], "b": [3.0]}
    assert [text.get_text() for text in ax.texts] == ["epoch 0", "epoch 1"]
