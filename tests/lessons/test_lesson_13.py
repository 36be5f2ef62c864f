"""The checkers of lesson 13 know right from wrong; its programs keep secrets; its pictures draw."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import pytest
import torch
from solution_support import NOTEBOOKS, assert_not_yet, solutions, verdict
from torch import Tensor

from scripts.link_edges import Links, side_of
from scripts.link_negatives import WAYS, pair_loss
from scripts.link_scores import ranks_among
from support.exercises import lesson_13
from support.plots import link_prediction as plots

with_twins = solutions("13").with_twins
WRONG = [
    (lambda *_: None, r"got       None\n  expected  tensor \(6,\) torch.bool"),
    (lambda _s, _d, chosen: chosen, "this is the mask as it came"),
    (  # twins next to each other, as only some data sets have them
        lambda _s, _d, chosen: chosen | chosen.view(-1, 2).flip(1).flatten(),
        r"held-out mask of \d+ edges, from",
    ),
    (  # only where there are few edges
        lambda s, d, chosen: with_twins(s, d, chosen) if len(s) < 20 else chosen,
        r"held-out mask of \d\d+ edges\n",
    ),
    (  # nothing is chosen
        lambda s, d, chosen: with_twins(s, d, chosen) if chosen.any() else ~chosen,
        r"expected  tensor \(12,\) torch.bool \[False",
    ),
]


def test_right_answer(capsys):
    assert verdict(capsys, lesson_13.check_with_twins, with_twins) == "Exercise 1: correct\n"


@pytest.mark.parametrize(("answer", "words"), WRONG)
def test_wrong_answer(answer, words, capsys):
    assert_not_yet(verdict(capsys, lesson_13.check_with_twins, answer), words)


# Exercise 2: what a program would have written.


def in_batch() -> Callable[..., Tensor]:
    """The solution's function."""
    path = next((NOTEBOOKS / "solutions").glob("13_*.ipynb"))
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    program = next(cell for cell in cells if cell.startswith("%%writefile scripts/exercise_13_2.py"))
    found: dict[str, Any] = {"torch": torch}
    exec(re.search(r"def in_batch.*?(?=\n\n\n)", program, re.S)[0], found)
    return found["in_batch"]


def write(
    folder: Path,
    draw: Callable[..., Tensor],
    *,
    more: int = 0,
    ranks: int = 2,
    way: str = "in_batch",
    apart: bool = False,
) -> str:
    """Result and program as the reader leaves them; ``more`` nodes were embedded besides the ends.

    apart: no node is an end of two edges.
    """
    torch.manual_seed(0)
    found = []
    for _rank in range(ranks):
        src, dst = torch.randint(40, (2, 32))
        dst[:5] = dst[0]  # an end of several edges
        if apart:
            src, dst = torch.randperm(64).view(2, 32)
        batch = [src.tolist(), dst.tolist(), draw(None, src, dst, 16).tolist()]
        found.append({"batch": batch, "seeds": len(set(batch[0]) | set(batch[1])) + more})
    (folder / "out").mkdir()
    program = folder / "exercise_13_2.py"
    program.write_text("")
    result = folder / "out" / "exercise_13_2.json"
    result.write_text(json.dumps({way: {"ranks": found, "mrr": [0.3]}}))
    os.utime(program, (0, 0))
    return str(program)


def test_right_program(tmp_path, capsys):
    assert verdict(capsys, lesson_13.check_in_batch, write(tmp_path, in_batch())) == "Exercise 2: correct\n"


def test_as_many_nodes_as_ends(tmp_path, capsys):
    program = write(tmp_path, in_batch(), apart=True)
    assert verdict(capsys, lesson_13.check_in_batch, program) == "Exercise 2: correct\n"


def test_another_right_program(tmp_path, capsys):
    def draw(_g: Any, _src: Tensor, dst: Tensor, k: int) -> Tensor:
        others = [torch.tensor([j for j in range(len(dst)) if j != i]) for i in range(len(dst))]
        return torch.stack([dst[places[torch.randperm(len(places))[:k]]] for places in others])

    assert verdict(capsys, lesson_13.check_in_batch, write(tmp_path, draw)) == "Exercise 2: correct\n"


WRONG_PROGRAMS: dict[str, tuple[Callable[..., Tensor], dict[str, Any], str]] = {
    "the stub": (lambda _g, s, _d, k: torch.randint(1000, (len(s), k)), {}, "no destination of the batch"),
    "sources": (lambda _g, s, _d, k: s[:, None].expand(32, k) + 100, {}, "no destination"),
    "from place i on": (
        lambda _g, _s, d, k: d[(torch.arange(32)[:, None] + torch.arange(k)) % 32],
        {},
        "have themselves as a negative",
    ),
    "all with all": (lambda _g, _s, d, _k: d.expand(32, 32), {}, "negatives of an edge"),
    "one edge, k times": (lambda _g, _s, d, k: d.roll(1)[:, None].expand(32, k), {}, "taken twice|have themselves"),
    "one row": (lambda _g, _s, d, k: d[:k][None], {}, "edges with negatives"),
    "more nodes": (in_batch(), {"more": 64}, "nodes to embed"),
    "one rank": (in_batch(), {"ranks": 1}, "ranks"),
    "another way": (in_batch(), {"way": "joint"}, "has measured"),
}


@pytest.mark.parametrize(("draw", "options", "said"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS.keys())
def test_wrong_program(draw, options, said, tmp_path, capsys):
    assert_not_yet(verdict(capsys, lesson_13.check_in_batch, write(tmp_path, draw, **options)), said)


def test_a_program_that_did_not_run(tmp_path, capsys):
    program = tmp_path / "exercise_13_2.py"
    assert_not_yet(verdict(capsys, lesson_13.check_in_batch, str(program)), "is there")
    program.write_text("")
    assert_not_yet(verdict(capsys, lesson_13.check_in_batch, str(program)), "has written a result")


# The programs of the lesson.


@pytest.fixture(scope="module")
def graph() -> Any:
    """Symmetric, 300 nodes."""
    torch.manual_seed(0)
    return dgl.to_bidirected(dgl.rand_graph(300, 1500))


def test_a_pair_is_on_one_side_and_the_shares_are_right(graph):
    src, dst = torch.randint(10_000, (2, 200_000))
    side = side_of(src, dst)
    assert torch.equal(side, side_of(dst, src))
    assert (side == 1).double().mean().item() == pytest.approx(0.05, abs=0.003)
    assert (side == 2).double().mean().item() == pytest.approx(0.05, abs=0.003)
    assert not side_of(src, dst, share=0).any()
    turned = Links(graph, torch.arange(300).flip(0))  # by ids of the data set, not of the graph
    assert torch.equal(turned.side(src[:9] % 300, dst[:9] % 300), side_of(299 - src[:9] % 300, 299 - dst[:9] % 300))


@pytest.mark.parametrize("leak", [False, True])
def test_a_batch_leaves_out_what_it_must(graph, leak):
    links = Links(graph, torch.arange(300), share=0.1, leak=leak)
    side = links.side(*graph.edges(order="eid"))
    edges = (side == 0).nonzero().flatten()[::40]
    blocks, places = links.batch(edges, [-1, -1], WAYS["uniform"], 3)
    seeds = blocks[-1].dstdata[dgl.NID]
    src, dst = graph.find_edges(edges)
    assert torch.equal(seeds[places[0]], src)
    assert torch.equal(seeds[places[1]], dst)
    assert places[2].shape == (len(edges), 3)
    dropped = torch.cat([edges, graph.edge_ids(dst, src)]).unique()
    for block in blocks:
        expected = torch.isin(graph.edges()[1], block.dstdata[dgl.NID]) & (side == 0)
        if not leak:
            expected[dropped] = False
        assert torch.equal(block.edata[dgl.EID].sort().values, expected.nonzero().flatten())


def test_ranks_and_loss_by_hand():
    h = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0], [0.6, -0.8]])
    one, two = torch.tensor([0]), torch.tensor([1])
    assert ranks_among(h, one, two, torch.tensor([2, 3])).tolist() == [2.0]
    assert ranks_among(h, one, two, torch.tensor([2, 4])).tolist() == [2.5]  # 4 scores the same
    assert ranks_among(h, one, two, torch.tensor([0, 1, 3])).tolist() == [1.0]  # the ends are no rivals
    expected = (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(3.0))) / 2  # cosines 0.6 and 0.8
    assert pair_loss(h, one, two, torch.tensor([[2]])).item() == pytest.approx(expected)


def test_joint_negatives_are_the_same_for_all_edges(graph):
    src = torch.arange(20)
    for way in ("uniform", "joint"):
        drawn = WAYS[way](graph, src, src, 8)
        assert drawn.shape == (20, 8)
        assert bool((drawn == drawn[0]).all()) == (way == "joint")


STEPS = """
import sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from link_negatives import batches
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
links = SimpleNamespace(batch=lambda edges, *_: edges)
options = {"seed": 0, "fanouts": "5", "batch_size": 4, "negatives": "uniform", "num_negatives": 1}
args = SimpleNamespace(**options, epoch_edges=int(sys.argv[3]))
print(sum(1 for _ in batches(links, torch.arange(8 + rank), args, 0)))
"""


@pytest.mark.parametrize(("epoch_edges", "steps"), [(100, 2), (8, 1)])
def test_ranks_with_uneven_shares_make_equally_many_steps(epoch_edges, steps, tmp_path):
    """Shares of 8 and 9 edges, batches of 4: a rank with a third batch would wait for ever in DDP."""
    words = [sys.executable, "-c", STEPS]
    more = [str(tmp_path / "store"), str(epoch_edges)]
    ranks = [
        subprocess.Popen([*words, str(rank), *more], cwd=NOTEBOOKS / "scripts", stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [int(rank.communicate(timeout=60)[0]) for rank in ranks] == [steps, steps]


def test_pictures():
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    drawn = plots.batch_of_edges(points, [(0, 1), (1, 2)], [(2, 3)], [(0, 1)], [(0, 3)], [(1, 2)])
    titles = ["every pair is on one side", "a batch", "what its ends may look at"]
    assert [ax.get_title() for ax in drawn.axes] == titles
    curves = plots.rank_curves({"one": np.array([1.0, 3.0, 11.0])}, 101)
    assert list(curves.axes[0].lines[0].get_ydata()[:3]) == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    cost = plots.cost_of_negatives({"uniform": {"rows": 100.0, "remote": 40.0, "came": 16_000.0}})
    assert [bar.get_width() for bar in cost.axes[0].patches] == [60.0, 40.0]
    assert "16 kB came" in cost.axes[0].texts[0].get_text()
    dots = plots.dots({"honest": [0.25, 0.75]}, "MRR")
    assert list(dots.axes[0].lines[1].get_xdata()) == [0.5, 0.5]
