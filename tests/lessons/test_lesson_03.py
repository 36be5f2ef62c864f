"""The checkers of lesson 3 know right from wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_03

ANSWERS = solutions("03")


def sampler(
    *,
    order: Any = reversed,
    front: bool = True,
    filtered: str = "src",
    hops_filtered: int = 9,
    keep_asking: bool = True,
    early: bool = False,
) -> Any:
    """The solution, with one thing changed."""

    def sample_visible(draw, graph, seeds, fanouts, visible):
        first, blocks = seeds, []
        for hop, fanout in enumerate(order(fanouts)):
            frontier = draw(graph, seeds, fanout)
            src, dst = frontier.edges()
            shown = {"src": visible[src], "dst": visible[dst], "both": visible[src] & visible[dst]}[filtered]
            if hop < hops_filtered:
                frontier = dgl.remove_edges(frontier, (~shown).nonzero().flatten())
            block = dgl.to_block(frontier, seeds)
            seeds = block.srcdata[dgl.NID] if keep_asking else first
            blocks.insert(0 if front else len(blocks), block)
            if early:
                return blocks
        return blocks

    return sample_visible


def hide_in_the_graph(draw, graph, seeds, fanouts, visible):
    """Another right way: take the edges out before the draw."""
    kept = dgl.remove_edges(graph, (~visible[graph.edges()[0]]).nonzero().flatten())
    return sampler(hops_filtered=0)(draw, kept, seeds, fanouts, visible)


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'"),
    "return in the loop": (sampler(early=True), "number of blocks"),
    "new blocks at the end": (sampler(front=False), "destination nodes of hop 1"),
    "fan-outs from the front": (sampler(order=list), "edges of hop|at most 1 edges"),
    "nothing hidden": (sampler(hops_filtered=0), "edges from hidden nodes, hop 1"),
    "hidden in hop 1": (sampler(hops_filtered=1), "edges from hidden nodes, hop 2"),
    "hides destinations": (sampler(filtered="dst"), "edges from hidden nodes"),
    "hidden seeds do not ask": (sampler(filtered="both"), "edges of hop 1"),
    "always the same seeds": (sampler(keep_asking=False), "destination nodes of hop 2"),
    "raises": (lambda *_: torch.zeros(2).no_such_thing(), "Your code raised AttributeError"),
}


test_right_answer, test_wrong_answer = answer_tests(
    lesson_03.check_sample_visible, [ANSWERS.sample_visible, sampler(), hide_in_the_graph], WRONG
)


def test_checkers_leave_the_generators_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    lesson_03.check_sample_visible(ANSWERS.sample_visible)
    assert torch.equal(torch.rand(1), expected)


# Exercise 2: the files that a program on two machines would have written.


def reach(stored: Any, seeds: torch.Tensor, *, hops: int = 2, remote: bool = False) -> torch.Tensor:
    """New ids of the seeds (places in the part) and of their neighbors, by sets."""
    inner = stored.ndata["inner_node"].bool().tolist()
    pairs = list(zip(*(ends.tolist() for ends in stored.edges()), strict=True))
    found = set(seeds.tolist())
    for _hop in range(hops):
        found |= {a for a, b in pairs if b in found and inner[b] and (remote or inner[a])}
    return stored.ndata[dgl.NID][torch.tensor(sorted(found))]


@pytest.fixture
def write(tmp_path: Path, parts: Path) -> Callable[[dict[str, Any]], tuple[Path, Path]]:
    """Write the files of both ranks, with some of it changed."""

    def write(changes: dict[str, Any]) -> tuple[Path, Path]:
        for rank in range(changes.get("ranks", 2)):
            stored, *_ = dgl.distributed.load_partition(str(parts), rank)
            seeds = stored.ndata["inner_node"].nonzero().flatten()[:64]
            entry = {"seeds": stored.ndata[dgl.NID][seeds].tolist(), "fanouts": [-1, -1], "remote_rows": 0}
            entry["inputs"] = reach(stored, seeds, **changes.get("reach", {})).tolist()
            (tmp_path / f"rank-{rank}.json").write_text(json.dumps([{**entry, **changes.get("entry", {})}]))
        return tmp_path, parts

    return write


LEAVES = {
    "the program as it was": ({"reach": {"remote": True}, "entry": {"remote_rows": 7}}, "remote rows"),
    "remote rows not counted": ({"reach": {"remote": True}}, "input rows"),
    "one hop": ({"reach": {"hops": 1}}, "input rows"),
    "other seeds": ({"entry": {"seeds": [0, 1]}}, "seeds of its own part"),
    "other rows": ({"entry": {"inputs": list(range(400))}}, "input rows"),
    "other fan-outs": ({"entry": {"fanouts": [5, 10]}}, "no batch with the fan-outs"),
    "did not run": ({"ranks": 0}, "rank-0.json is not there"),
    "one rank": ({"ranks": 1}, "rank-1.json is not there"),
}
test_a_batch_that_stays_at_home, test_a_batch_that_leaves = answer_tests(
    lesson_03.check_stays_at_home, [{}], LEAVES, "write"
)
