"""The checkers of lesson 6 know right from wrong; what its ranks run agrees with DGL; its pictures can be drawn."""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from commands import wait_until
from solution_support import solutions, verdict
from torch import Tensor

from support.exercises import lesson_06
from support.lessons import node_classification as ranks
from support.plots import multi_gpu as plots
from tutorial_lib.batches.nodes import sampling_threads
from tutorial_lib.data import Dataset
from tutorial_lib.processes import fix_openmp, fork

ANSWERS = solutions("06")
contiguous_share = ANSWERS.contiguous_share
loss_factors = ANSWERS.loss_factors
popular_frontier = ANSWERS.popular_frontier


CHECKS = (lesson_06.check_contiguous_share, lesson_06.check_loss_factors, lesson_06.check_popular_frontier)
RIGHT = [
    *zip(CHECKS, (contiguous_share, loss_factors, popular_frontier), strict=True),
    (CHECKS[0], lambda nids, rank, world_size: torch.tensor_split(nids, world_size)[rank]),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


def drops(nids: Tensor, rank: int, world_size: int) -> Tensor:
    size = len(nids) // world_size
    return nids[size * rank : size * (rank + 1)]


def last_takes_all(nids: Tensor, rank: int, world_size: int) -> Tensor:
    size = len(nids) // world_size
    return nids[size * rank : None if rank == world_size - 1 else size * (rank + 1)]


def ascending(graph: dgl.DGLGraph, seeds: Tensor, fanout: int) -> dgl.DGLGraph:
    with graph.local_scope():
        graph.edata["popular"] = graph.out_degrees(graph.edges()[0]).float()
        return dgl.sampling.select_topk(graph, fanout, "popular", seeds, ascending=True)


WRONG = {
    "stub": (0, lambda *_: None, "got       'NoneType'"),
    "drops the remainder": (0, drops, r"got       tensor \(20,\)(.|\n)*expected  tensor \(23,\)"),
    "the last takes all": (0, last_takes_all, r"\[5, 5, 5, 8\]\n  got       3\n  expected  1"),
    "strided": (0, lambda n, r, w: n[r::w], r"got       tensor \(23,\) torch.int64 \[100, 112(.|\n)*hint"),
    "second stub": (1, lambda _s: None, "got       None"),
    "shares of the sum": (1, lambda s: [size / sum(s) for size in s], r"\[0.5, 0.5\](.|\n)*expected  \[1.0, 1.0\]"),
    "all one": (1, lambda s: [1.0] * len(s), r"got       \[1.0, 1.0\]\n  expected  \[1.5, 0.5\]"),
    "third stub": (2, lambda *_: None, "got       'NoneType'"),
    "uniform": (2, lambda g, s, f: dgl.sampling.sample_neighbors(g, s, f), "neighbours of node"),
    "least popular": (2, ascending, "neighbours of node(.|\n)*out-degree"),
    "all nodes receive": (2, lambda g, _s, f: popular_frontier(g, g.nodes(), f), "nodes that receive"),
    "a node more": (2, lambda g, s, f: dgl.add_nodes(popular_frontier(g, s, f), 1), "number of nodes"),
    "raises": (2, lambda g, _s, _f: g.no_such_thing(), "Your code raised AttributeError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = verdict(capsys, CHECKS[number], answer)
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


def test_own_sampler_draws_what_dgl_draws(small_dataset: Dataset) -> None:
    graph, seeds = small_dataset.graph, torch.arange(50)
    drawn = []
    with sampling_threads(1):  # with two, DGL numbers the nodes of a block as its threads find them
        for sampler in (ranks.UniformSampler([3, 4]), dgl.dataloading.MultiLayerNeighborSampler([3, 4])):
            dgl.seed(1)
            drawn.append(sampler.sample(graph, seeds))
    (mine, mine_seeds, mine_blocks), (theirs, _, their_blocks) = drawn
    assert torch.equal(mine, theirs)
    assert torch.equal(mine_seeds, seeds)
    for a, b in zip(mine_blocks, their_blocks, strict=True):
        assert torch.equal(torch.stack(a.edges()), torch.stack(b.edges()))
        assert torch.equal(a.edata[dgl.EID], b.edata[dgl.EID])


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("validate", ["rank 0", "all ranks"])
def test_training_of_the_lesson(validate: str, small_dataset: Dataset, tmp_path: Path) -> None:
    data, path = ranks.Data.of(small_dataset), tmp_path / "best.safetensors"
    cpu = torch.device("cpu")
    job = ranks.Job(devices=(cpu,) * 3, epochs=2, fanouts=(4, 4), validate=validate, model_path=str(path))
    reports = fork(fix_openmp(ranks.train), 3, (data, job), backend="gloo", threads=1, timeout=60, echo=False)
    for epoch in range(2):
        visited = torch.cat([report.visited[epoch] for report in reports])
        assert torch.equal(visited.sort().values, data.train_ids)
    assert reports[0].losses == reports[2].losses
    assert reports[0].losses[1] < reports[0].losses[0]
    assert reports[0].val[0][1] == len(data.val_ids)
    assert reports[1].val == (reports[0].val if validate == "all ranks" else [None, None])
    assert {what for what, _start, _end in reports[1].spans} <= {"train", "validate", "wait"}
    assert path.exists()


def test_first_weights_depend_on_the_seed_alone(small_dataset: Dataset) -> None:
    data, job = ranks.Data.of(small_dataset), ranks.Job()
    torch.manual_seed(3)
    first = ranks.new_model(data, job).state_dict()
    second = ranks.new_model(data, job).state_dict()
    other = ranks.new_model(data, replace(job, seed=1)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.usefixtures("nothing_left")
def test_folder_goes_with_a_killed_process() -> None:
    code = (
        "import os, signal; from support.multi_process import temporary_folder\n"
        "print(temporary_folder().name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_absolute()
    wait_until(lambda: not folder.exists(), "the end of the folder", 10)


def test_pictures() -> None:
    assert {"its copy of the model", "seed nodes"} <= {text.get_text() for text in plots.two_ranks().axes[0].texts}
    figure = plots.shares({"floor": [[0, 1], [2, 3]], "padded": [[0, 1, 2], [3, 4, 3]]}, range(5))
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"floor: 1 left out, 0 visited twice", "padded: 0 left out, 1 visited twice"} <= texts
    (ax,) = plots.curves({"a": [0.1, 0.2], "b": [0.3]}, "accuracy").axes
    assert (ax.get_ylabel(), [list(line.get_ydata()) for line in ax.lines]) == ("accuracy", [[0.1, 0.2], [0.3]])
    spans = [("train", 1.0, 2.0), ("validate", 2.0, 2.5), ("wait", 2.5, 2.6)]
    first, second = plots.timelines({"one": [spans, spans], "two": [spans]}).axes
    assert [round(bar.get_width(), 6) for bar in first.patches] == [1.0, 0.5, 0.1] * 2
    assert [round(bar.get_x(), 6) for bar in second.patches] == [0.0, 1.0, 1.5]


def test_memory_is_in_bytes_and_consistent() -> None:
    memory = ranks.pss_of()
    assert memory["rss"] == memory["private"] + memory["shared"]
    assert memory["private"] <= memory["pss"] <= memory["rss"]
    # From the kernel itself: malloc may reuse what other tests have freed.
    with mmap.mmap(-1, 80_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(bytes(80_000_000))
        assert ranks.pss_of()["private"] - memory["private"] > 70_000_000
