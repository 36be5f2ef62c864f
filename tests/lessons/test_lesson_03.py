"""The checkers of lesson 3 know right from wrong, and its pictures can be drawn."""

import json
import re
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from solution_support import assert_not_yet, solutions, verdict

from support.exercises import lesson_03
from support.plots import sampling

ANSWERS = solutions("03")


def sampler(
    *,
    order: Any = reversed,
    front: bool = True,
    filtered: str = "src",
    hops_filtered: int = 9,
    keep_asking: bool = True,
    early: bool = False,
    relabel: bool = False,
) -> Any:
    """The solution, with one thing changed."""

    def sample_visible(draw, graph, seeds, fanouts, visible):
        first, blocks = seeds, []
        for hop, fanout in enumerate(order(fanouts)):
            frontier = draw(graph, seeds, fanout)
            src, dst = frontier.edges()
            shown = {"src": visible[src], "dst": visible[dst], "both": visible[src] & visible[dst]}[filtered]
            if hop < hops_filtered:
                if relabel:
                    frontier = dgl.edge_subgraph(frontier, shown, relabel_nodes=True)
                    seeds = torch.arange(min(len(seeds), frontier.num_nodes()))
                else:
                    frontier = dgl.remove_edges(frontier, (~shown).nonzero().flatten())
            block = dgl.to_block(frontier, seeds)
            seeds = block.srcdata[dgl.NID] if keep_asking else first
            blocks.insert(0 if front else len(blocks), block)
            if early:
                return blocks
        return blocks

    return sample_visible


def test_right_answer(capsys):
    assert verdict(capsys, lesson_03.check_sample_visible, ANSWERS.sample_visible) == "Exercise 1: correct\n"
    assert verdict(capsys, lesson_03.check_sample_visible, sampler()) == "Exercise 1: correct\n"


def hide_in_the_graph(draw, graph, seeds, fanouts, visible):
    """Another right way: take the edges out before the draw."""
    kept = dgl.remove_edges(graph, (~visible[graph.edges()[0]]).nonzero().flatten())
    return sampler(hops_filtered=0)(draw, kept, seeds, fanouts, visible)


def test_another_right_answer(capsys):
    assert verdict(capsys, lesson_03.check_sample_visible, hide_in_the_graph) == "Exercise 1: correct\n"


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'"),
    "return in the loop": (sampler(early=True), "number of blocks"),
    "new blocks at the end": (sampler(front=False), "destination nodes of hop 1"),
    "fan-outs from the front": (sampler(order=list), "edges of hop|at most 1 edges"),
    "nothing hidden": (sampler(hops_filtered=0), "edges from hidden nodes, hop 1"),
    "hidden in the first hop only": (sampler(hops_filtered=1), "edges from hidden nodes, hop 2"),
    "hides destinations": (sampler(filtered="dst"), "edges from hidden nodes"),
    "hidden seeds do not ask": (sampler(filtered="both"), "edges of hop 1"),
    "always the same seeds": (sampler(keep_asking=False), "destination nodes of hop 2"),
    "new node ids": (sampler(relabel=True), "destination nodes|edges|source nodes"),
    "raises": (lambda *_: torch.zeros(2).no_such_thing(), "Your code raised AttributeError"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(answer, said, capsys):
    output = verdict(capsys, lesson_03.check_sample_visible, answer)
    assert output.startswith("Exercise 1: not yet.")
    assert re.search(said, output), output


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


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part config: 400 nodes in two parts."""
    torch.manual_seed(0)
    graph = dgl.to_bidirected(dgl.rand_graph(400, 1200))
    folder = tmp_path_factory.mktemp("parts")
    dgl.distributed.partition_graph(graph, "small", 2, str(folder), part_method="random")
    return folder / "small.json"


def write(folder: Path, parts: Path, *, ranks: int = 2, fanouts: Any = (-1, -1), **changes: Any) -> Path:
    for rank in range(ranks):
        stored, *_ = dgl.distributed.load_partition(str(parts), rank)
        seeds = stored.ndata["inner_node"].nonzero().flatten()[:64]
        entry = {"seeds": stored.ndata[dgl.NID][seeds].tolist(), "fanouts": list(fanouts), "remote_rows": 0}
        entry["inputs"] = reach(stored, seeds, **changes.get("reach", {})).tolist()
        (folder / f"rank-{rank}.json").write_text(json.dumps([{**entry, **changes.get("entry", {})}]))
    return folder


def stays_at_home(folder: Path, parts: Path, capsys: pytest.CaptureFixture[str]) -> str:
    lesson_03.check_stays_at_home(folder, parts)
    return capsys.readouterr().out


def test_a_batch_that_stays_at_home(tmp_path, parts, capsys):
    assert stays_at_home(write(tmp_path, parts), parts, capsys) == "Exercise 2: correct\n"


LEAVES = {
    "the program as it was": ({"reach": {"remote": True}, "entry": {"remote_rows": 7}}, "remote rows"),
    "remote rows not counted": ({"reach": {"remote": True}}, "input rows"),
    "seeds only": ({"reach": {"hops": 0}}, "input rows"),
    "one hop": ({"reach": {"hops": 1}}, "input rows"),
    "other seeds": ({"entry": {"seeds": [0, 1]}}, "seeds of its own part"),
    "other rows": ({"entry": {"inputs": list(range(400))}}, "input rows"),
}


@pytest.mark.parametrize(("changes", "said"), LEAVES.values(), ids=LEAVES.keys())
def test_a_batch_that_leaves(changes, said, tmp_path, parts, capsys):
    assert_not_yet(stays_at_home(write(tmp_path, parts, **changes), parts, capsys), said)


def test_a_program_that_did_not_run(tmp_path, parts, capsys):
    assert "rank-0.json is not there" in stays_at_home(tmp_path, parts, capsys)
    assert "rank-1.json is not there" in stays_at_home(write(tmp_path, parts, ranks=1), parts, capsys)
    assert "no batch with the fan-outs" in stays_at_home(write(tmp_path, parts, fanouts=(5, 10)), parts, capsys)


def test_pictures():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    edges = (torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0]))
    hops = [(torch.tensor([3]), torch.tensor([0])), (torch.tensor([3, 2]), torch.tensor([0, 3]))]
    figure = sampling.frontier(points, edges, torch.tensor([0]), hops)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["hop 1: 1 nodes ask, 2 are known", "hop 2: 2 nodes ask, 3 are known"]

    figure = sampling.input_nodes([2, 5], {1: [30, 60], 2: [80, 99]}, 10, 100)
    assert "2 hops: 99% of nodes" in {text.get_text() for text in figure.axes[0].texts}
