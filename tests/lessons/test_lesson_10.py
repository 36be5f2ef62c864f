"""Lesson 10: train.py gives the same answer wherever it runs; its cache, its checkers, its pictures."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dgl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import launch
from program_support import scripts_in
from solution_support import NOTEBOOKS, assert_not_yet, solutions, verdict

from support.exercises import lesson_10
from support.plots import multi_machine as plots

EXACT = "--fanouts=-1,-1 --dropout 0 --batch_size 100000 --hidden 16 --num_epochs 3"  # one step an epoch, no chance
SAMPLED = "--fanouts 5,10 --dropout 0.5 --batch_size 50 --hidden 16"


def options_of(part: Any, more: str, ip_config: str = "ip_config.txt") -> list[str]:
    names = ["--graph_name", part.graph_name, "--part_config", str(part.config), "--ip_config", ip_config]
    return [*names, *more.split()]


def alone(scripts: Path, part: Any, more: str) -> dict[str, Any]:
    """What train.py writes when it is started by hand."""
    command = [sys.executable, str(scripts / "train.py"), *options_of(part, more, "none"), "--out", "alone.json"]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "DGL_DIST_MODE")}
    done = subprocess.run(command, cwd=scripts, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((scripts / "alone.json").read_text())
    assert len(re.findall(r"^epoch \d+  loss \d.\d{4}  validation accuracy \d.\d{4}  \d.\d\d s$", done.stdout, re.M))
    return found


def launched(
    scripts: Path, part: Any, more: str, *machines: str, name: str = "job.json", program: str = "train.py"
) -> dict[str, Any]:
    """What train.py, or a program that extends it, writes under our launch."""
    command = shlex.join(["python3", program, *options_of(part, more), "--out", name])
    base = ["--part_config", str(part.config), "--ip_config", "ip_config.txt", "--num_omp_threads", "1"]
    done = launch(*machines, *base, "--out", f"logs-{name}", command, cwd=scripts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validation accuracy" in done.stdout + done.stderr
    return json.loads((scripts / name).read_text())


def losses(found: dict[str, Any]) -> list[float]:
    return [epoch["loss"] for epoch in found["epochs"]]


def by_hand(scripts: Path, graph: Any) -> list[float]:
    """The losses of EXACT, on the plain graph, by a loop that knows nothing of machines."""
    sys.path.insert(0, str(scripts))
    from sage import GraphSAGE

    ids = graph.ndata["train_mask"].nonzero().flatten()
    labels = graph.ndata["label"]
    known = graph.ndata["train_mask"].bool() | graph.ndata["val_mask"].bool()
    torch.manual_seed(0)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 16, int(labels[known].max()) + 1, dropout=0)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    whole = [dgl.to_block(graph, graph.nodes())] * 2
    for _epoch in range(3):
        loss = F.cross_entropy(model(whole, graph.ndata["feat"])[ids], labels[ids].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return scripts_in(tmp_path)


def test_the_program_is_short_and_imports_torch_and_dgl_only():
    source = (NOTEBOOKS / "scripts" / "train.py").read_text()
    assert len(source.splitlines()) < 150
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.M))
    assert imported - set(sys.stdlib_module_names) == {"torch", "dgl", "sage", "leave", "seeds"}


@pytest.mark.whole_run
def test_alone_it_is_a_plain_loop(scripts, partition_of, small_dataset):
    expected = by_hand(scripts, small_dataset.graph)
    torch.testing.assert_close(losses(alone(scripts, partition_of(1), EXACT)), expected, atol=1e-4, rtol=0)


SHARES = """
import json
from pathlib import Path

import torch
import torch.distributed as dist

from train import arguments, join_job, leave_job, run, split

if __name__ == "__main__":
    args = arguments().parse_args()
    g = join_job(args)
    Path(f"share-{dist.get_rank()}.json").write_text(json.dumps(split(g)[0].tolist()))
    run(g, args)
    leave_job()
"""


def in_steps(scripts: Path, graph: Any, shares: list[torch.Tensor], size: int, epochs: int) -> list[float]:
    """The losses of train.py on the plain graph: a step takes the next ``size`` nodes of each share."""
    sys.path.insert(0, str(scripts))
    from sage import GraphSAGE

    labels, whole = graph.ndata["label"].long(), [dgl.to_block(graph, graph.nodes())] * 2
    known = graph.ndata["train_mask"].bool() | graph.ndata["val_mask"].bool()
    torch.manual_seed(0)
    model = GraphSAGE(graph.ndata["feat"].shape[1], 16, int(labels[known].max()) + 1, dropout=0)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(epochs):
        total = 0.0
        orders = [share[torch.randperm(len(share), generator=torch.Generator().manual_seed(epoch))] for share in shares]
        for step in range(0, max(len(share) for share in shares), size):
            ids = torch.cat([order[step : step + size] for order in orders])
            loss = F.cross_entropy(model(whole, graph.ndata["feat"])[ids], labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(ids)
        found.append(total / sum(len(share) for share in shares))
    return found


@pytest.mark.cluster
def test_a_rank_with_fewer_steps_does_not_change_the_losses(
    scripts, emulation, nothing_left, partition_of, small_dataset
):
    """Steps 6, 6, 6 and 5: after the first epoch, Adam of the last rank must be what that of the others is."""
    (scripts / "shares.py").write_text(SHARES)
    part, options = partition_of(2), "--fanouts=-1,-1 --dropout 0 --hidden 16 --batch_size 49 --num_epochs 2"
    machines = ("--emulate", "2", "--num_trainers", "2")
    found = losses(launched(scripts, part, options, *machines, program="shares.py"))
    original = torch.from_numpy(np.load(part.folder / "node_map.npy"))
    shares = [original[json.loads((scripts / f"share-{rank}.json").read_text())] for rank in range(4)]
    assert sorted(map(len, shares)) == [245, 246, 246, 246]
    expected = in_steps(scripts, small_dataset.graph, shares, 49, 2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


class Tensor:
    """A ``DistTensor`` of 10 nodes, of which this machine owns the first four; counts the rows that are asked."""

    shape = (10, 3)

    def __init__(self) -> None:
        self.rows, self.asked, self.requests = torch.rand(self.shape), [], 0
        self.dtype = self.rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked += ids.tolist()
        self.requests += 1
        return self.rows[ids]


BOOK = SimpleNamespace(partid=0, nid2partid=lambda ids: (ids >= 4).long())


def test_a_row_that_has_come_does_not_come_again(scripts):
    sys.path.insert(0, str(scripts))
    from row_cache import RowCache

    tensor = Tensor()
    cache = RowCache(tensor, BOOK, 3)
    for ids in ([0, 9, 5, 1], [5, 7, 9, 2], [8, 7, 6, 3], []):
        ids = torch.tensor(ids, dtype=torch.int64)
        assert torch.equal(cache[ids], tensor.rows[ids])
    assert sorted(tensor.asked) == [0, 1, 2, 3, 5, 6, 7, 8, 9]  # 7 was the third row; there is no room for 8 and 6
    assert (cache.kept, cache.found, cache.asked) == (3, 3, 8)
    assert torch.equal(cache[torch.tensor([9, 5])], tensor.rows[[9, 5]])
    assert tensor.requests == 3  # two batches had nothing to ask for


ANSWERS = solutions("10")
plan_epoch = ANSWERS.plan_epoch
WRONG = [
    (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 3'"),
    (
        lambda n, r, b, a: ([-(-n // (r * b))] * r, r * b, a[1] * r * b / a[0]),
        r"got       \[6, 6, 6, 6\]\n  expected  \[6, 6, 6, 5\]",
    ),
    (lambda n, r, b, a: (*plan_epoch(n, r, b, a)[:2], a[1]), r"expected  0.02\n  hint"),
    (lambda n, r, b, a: (plan_epoch(n, r, b, a)[0], b, 0.01), r"got       49\n"),
    (lambda n, r, b, a: ([n // r // b] * r, *plan_epoch(n, r, b, a)[1:]), r"got       \[5, 5, 5, 5\]"),
]


def test_right_plan(capsys):
    assert verdict(capsys, lesson_10.check_plan_epoch, plan_epoch) == "Exercise 1: correct\n"
    tensors = lambda *case: tuple(torch.tensor(each) for each in plan_epoch(*case))  # noqa: E731
    assert verdict(capsys, lesson_10.check_plan_epoch, tensors) == "Exercise 1: correct\n"


@pytest.mark.parametrize(("answer", "complaint"), WRONG)
def test_wrong_plan(answer, complaint, capsys):
    assert_not_yet(verdict(capsys, lesson_10.check_plan_epoch, answer), complaint)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part config: 400 nodes in two parts."""
    torch.manual_seed(0)
    graph = dgl.to_bidirected(dgl.rand_graph(400, 1200))
    folder = tmp_path_factory.mktemp("parts")
    dgl.distributed.partition_graph(graph, "small", 2, str(folder), part_method="random")
    return folder / "small.json"


def caches(folder: Path, parts: Path, choose: Callable[..., torch.Tensor], mine: Any = (70, 100)) -> str:
    """The path of a program whose ranks have kept what ``choose(degrees, remote, capacity)`` says."""
    program = folder / "exercise_10_2.py"
    program.write_text("")
    (folder / "out").mkdir()
    stored = [dgl.distributed.load_partition(str(parts), rank)[0] for rank in range(2)]
    inner = [each.ndata["inner_node"].bool() for each in stored]
    degrees = torch.cat([each.in_degrees()[own] for each, own in zip(stored, inner, strict=True)])
    owner = torch.cat([torch.full((int(own.sum()),), rank) for rank, own in enumerate(inner)])
    for rank in range(2):
        remote = (owner != rank).nonzero().flatten()
        kept = choose(degrees, remote, len(remote) // 4).tolist()
        found = {"capacity": len(remote) // 4, "kept": kept, "first come": [30, 100], "mine": list(mine)}
        (folder / "out" / f"exercise_10_2-{rank}.json").write_text(json.dumps(found))
    return str(program)


def hottest(degrees: torch.Tensor, remote: torch.Tensor, capacity: int) -> torch.Tensor:
    return remote[degrees[remote].argsort(descending=True)[:capacity]]


def test_the_hottest_rows(tmp_path, parts, capsys):
    lesson_10.check_hot_rows(caches(tmp_path, parts, hottest), parts)
    assert capsys.readouterr().out == "Exercise 2: correct\n"


COLD = {
    "nothing is kept": ((lambda _d, r, _c: r[:0],), "rows kept\n  got       0"),
    "all remote rows": ((lambda _d, r, _c: r,), "rows kept"),
    "the first remote rows": ((lambda _d, r, c: r[:c],), "neighbors of all kept nodes"),
    "fewest neighbors": ((lambda d, r, c: r[d[r].argsort()[:c]],), "neighbors of all kept nodes"),
    "of all nodes": ((lambda d, _r, c: d.argsort(descending=True)[:c],), "nodes of its own part"),
    "positions for ids": ((lambda d, r, c: d[r].argsort(descending=True)[:c],), "own part|neighbors of all kept"),
    "filled after the batches": ((hottest, (20, 100)), "more of them were here"),
    "does not count": ((hottest, (0, 0)), "asked for as many rows"),
}


@pytest.mark.parametrize(("how", "said"), COLD.values(), ids=COLD.keys())
def test_colder_rows(how, said, tmp_path, parts, capsys):
    lesson_10.check_hot_rows(caches(tmp_path, parts, *how), parts)
    assert_not_yet(capsys.readouterr().out, said)


def test_a_program_that_did_not_run(tmp_path, parts, capsys):
    lesson_10.check_hot_rows(str(tmp_path / "exercise_10_2.py"), parts)
    assert "exercise_10_2.py is there\n  got       False" in capsys.readouterr().out
    program = caches(tmp_path, parts, hottest)
    (tmp_path / "out" / "exercise_10_2-1.json").unlink()
    lesson_10.check_hot_rows(program, parts)
    assert "start it on both machines" in capsys.readouterr().out


def test_pictures():
    found = {(1, "same"): [0.7, 0.72], (2, "same"): [0.6, 0.62], (2, "scaled"): [0.7, 0.7]}
    (ax,) = plots.accuracies(found).axes
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1 machine", "2 machines"]
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"same", "scaled"}
    epochs = [{"seconds": seconds, "waited": 0.1, "bytes": 2e6} for seconds in (0.3, 0.2, 0.4)]
    left, right = plots.wires({"fast": epochs, "slow": epochs}).axes
    assert [bar.get_width() for bar in left.patches[:2]] == pytest.approx([0.1, 0.2])
    assert [text.get_text().strip() for text in right.texts] == ["2.0", "2.0"]
