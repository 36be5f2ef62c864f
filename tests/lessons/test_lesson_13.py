"""The checkers of lesson 13 distinguish right and wrong answers, and its programs rank and take equal steps."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import NOTEBOOKS, answer_tests, read_program, solutions
from torch import Tensor

from scripts.link_negatives import pair_loss
from scripts.link_scores import ranks_among
from support.exercises import lesson_13

sys.path.append(str(NOTEBOOKS / "scripts"))  # where the programs of a lesson find each other
PROGRAM: dict[str, Any] = {"__name__": "exercise_13_2"}
exec(read_program("13", "exercise_13_2.py"), PROGRAM)
in_batch = PROGRAM["in_batch"]
with_twins = solutions("13").with_twins
WRONG = {
    "stub": (lambda *_: None, r"got       None\n  expected  tensor \(6,\) torch.bool"),
    "as it came": (lambda _s, _d, chosen: chosen, "returned the input mask"),
    "twins next to each other, as in some data sets": (
        lambda _s, _d, chosen: chosen | chosen.view(-1, 2).flip(1).flatten(),
        r"held-out mask of \d+ edges, from",
    ),
    "only where there are few edges": (
        lambda s, d, chosen: with_twins(s, d, chosen) if len(s) < 20 else chosen,
        r"held-out mask of \d\d+ edges\n",
    ),
    "not where nothing is chosen": (
        lambda s, d, chosen: with_twins(s, d, chosen) if chosen.any() else ~chosen,
        r"expected  tensor \(12,\) torch.bool \[False",
    ),
}
test_right_twins, test_wrong_twins = answer_tests(lesson_13.check_with_twins, [with_twins], WRONG)


# Exercise 2: what a program would have written.


@pytest.fixture
def write_sampled(tmp_path: Path) -> Callable[[Any], tuple[str]]:
    """Write a program and its result from a function that samples negatives and from options.

    The options are ``more`` embedded nodes, ``apart`` (edges share no endpoint), ``ranks``, ``way`` (the name of the
    method), and whether ``program`` and ``result`` exist.
    """

    def write(answer: Any) -> tuple[str]:
        draw, options = answer
        torch.manual_seed(0)
        found = []
        for _rank in range(options.get("ranks", 2)):
            src, dst = torch.randint(40, (2, 32))
            dst[:5] = dst[0]  # an end of several edges
            if options.get("apart"):
                src, dst = torch.randperm(64).view(2, 32)
            batch = [src.tolist(), dst.tolist(), draw(None, src, dst, 16).tolist()]
            found.append({"batch": batch, "seeds": len(set(batch[0]) | set(batch[1])) + options.get("more", 0)})
        program, out = tmp_path / "exercise_13_2.py", tmp_path / "out"
        out.mkdir()
        if options.get("program", True):
            program.write_text("")
            os.utime(program, (0, 0))
        if options.get("result", True):
            result = {options.get("way", "in_batch"): {"ranks": found, "mrr": [0.3]}}
            (out / "exercise_13_2.json").write_text(json.dumps(result))
        return (str(program),)

    return write


def without_the_own(_g: Any, _src: Tensor, dst: Tensor, k: int) -> Tensor:
    others = [torch.tensor([j for j in range(len(dst)) if j != i]) for i in range(len(dst))]
    return torch.stack([dst[places[torch.randperm(len(places))[:k]]] for places in others])


WRONG_DRAWS: dict[str, tuple[Any, str]] = {
    "the stub": ((lambda _g, s, _d, k: torch.randint(1000, (len(s), k)), {}), "not destinations of the batch"),
    "sources": ((lambda _g, s, _d, k: s[:, None].expand(32, k) + 100, {}), "not destinations"),
    "from place i on": (
        (lambda _g, _s, d, k: d[(torch.arange(32)[:, None] + torch.arange(k)) % 32], {}),
        "are their own negative",
    ),
    "all with all": ((lambda _g, _s, d, _k: d.expand(32, 32), {}), "negatives per edge"),
    "one edge, k times": (
        (lambda _g, _s, d, k: d.roll(1)[:, None].expand(32, k), {}),
        "sampled twice|are their own",
    ),
    "one row": ((lambda _g, _s, d, k: d[:k][None], {}), "edges with negatives"),
    "more nodes": ((in_batch, {"more": 64}), "only sources and destinations are embedded"),
    "one rank": ((in_batch, {"ranks": 1}), "number of ranks"),
    "another way": ((in_batch, {"way": "joint"}), "methods that .* measured"),
    "no program": ((in_batch, {"program": False}), "exercise_13_2.py exists"),
    "not run": ((in_batch, {"result": False}), "has written a result"),
}
DRAWS = [(in_batch, {}), (in_batch, {"apart": True}), (without_the_own, {})]
test_right_draws, test_wrong_draws = answer_tests(lesson_13.check_in_batch, DRAWS, WRONG_DRAWS, "write_sampled")


def test_ranks_and_loss_equal_manual_values():
    h = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0], [0.6, -0.8]])
    one, two = torch.tensor([0]), torch.tensor([1])
    assert ranks_among(h, one, two, torch.tensor([2, 3])).tolist() == [2.0]
    assert ranks_among(h, one, two, torch.tensor([2, 4])).tolist() == [2.5]  # 4 scores the same
    assert ranks_among(h, one, two, torch.tensor([0, 1, 3])).tolist() == [1.0]  # endpoints do not count
    expected = (np.log1p(np.exp(-1.0)) + np.log1p(np.exp(3.0))) / 2  # cosines 0.6 and 0.8
    assert pair_loss(h, one, two, torch.tensor([[2]])).item() == pytest.approx(expected)


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
def test_uneven_shares_give_equal_steps(epoch_edges, steps, tmp_path):
    """With shares of 8 and 9 edges and batches of 4, a rank with a third batch would wait forever in DDP."""
    words = [sys.executable, "-c", STEPS]
    more = [str(tmp_path / "store"), str(epoch_edges)]
    ranks = [
        subprocess.Popen([*words, str(rank), *more], cwd=NOTEBOOKS / "scripts", stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [int(rank.communicate(timeout=60)[0]) for rank in ranks] == [steps, steps]
