"""Lesson 10: train.py takes the steps of one process, its cache, its checkers."""

import json
import re
import shlex
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
from solution_support import NOTEBOOKS, answer_tests, solutions

from support.exercises import lesson_10


def test_program_is_short_and_imports_only_torch_and_dgl():
    source = (NOTEBOOKS / "scripts" / "train.py").read_text()
    assert len(source.splitlines()) < 150
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.M))
    assert imported - set(sys.stdlib_module_names) == {"torch", "dgl", "sage", "leave", "seeds"}


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
    """Return the losses of train.py on the plain graph. A step uses the next ``size`` nodes of each share."""
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
def test_rank_with_fewer_steps_does_not_change_losses(scripts, emulation, nothing_left, partition_of, small_dataset):
    """With 6, 6, 6 and 5 steps, the state of Adam must be equal on all ranks after the first epoch."""
    (scripts / "shares.py").write_text(SHARES)
    part, options = partition_of(2), "--fanouts=-1,-1 --dropout 0 --hidden 16 --batch_size 49 --num_epochs 2"
    names = ["--graph_name", part.graph_name, "--part_config", str(part.config), "--ip_config", "ip_config.txt"]
    command = shlex.join(["python3", "shares.py", *names, *options.split(), "--out", "job.json"])
    base = [*names[2:], "--num_omp_threads", "1", "--out", "logs"]
    done = launch("--emulate", "2", "--num_trainers", "2", *base, command, cwd=scripts)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [epoch["loss"] for epoch in json.loads((scripts / "job.json").read_text())["epochs"]]
    original = torch.from_numpy(np.load(part.folder / "node_map.npy"))
    shares = [original[json.loads((scripts / f"share-{rank}.json").read_text())] for rank in range(4)]
    assert sorted(map(len, shares)) == [245, 246, 246, 246]
    expected = in_steps(scripts, small_dataset.graph, shares, 49, 2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


class Tensor:
    """A fake ``DistTensor`` of 10 nodes. This machine owns the first four. It counts the requested rows."""

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


def test_cached_row_is_not_fetched_again(scripts):
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


plan_epoch = solutions("10").plan_epoch
WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 3'"),
    "rounded up": (
        lambda n, r, b, a: ([-(-n // (r * b))] * r, r * b, a[1] * r * b / a[0]),
        r"got       \[6, 6, 6, 6\]\n  expected  \[6, 6, 6, 5\]",
    ),
    "rounded down": (
        lambda n, r, b, a: ([n // r // b] * r, *plan_epoch(n, r, b, a)[1:]),
        r"got       \[5, 5, 5, 5\]",
    ),
    "same rate": (lambda n, r, b, a: (*plan_epoch(n, r, b, a)[:2], a[1]), r"expected  0.02\n  hint"),
    "of one rank": (lambda n, r, b, a: (plan_epoch(n, r, b, a)[0], b, 0.01), r"got       49\n"),
}
RIGHT = [plan_epoch, lambda *case: tuple(torch.tensor(each) for each in plan_epoch(*case))]
test_right_plan, test_wrong_plan = answer_tests(lesson_10.check_plan_epoch, RIGHT, WRONG)


def hottest(degrees: torch.Tensor, remote: torch.Tensor, capacity: int) -> torch.Tensor:
    return remote[degrees[remote].argsort(descending=True)[:capacity]]


@pytest.fixture
def caches(tmp_path: Path, parts: Path) -> Callable[[Any], tuple[str, Path]]:
    """Write a program and the output of ranks that cache the nodes of ``choose(degrees, remote, capacity)``.

    The last item of an answer is the number of ranks with output. None means that there is no program.
    """

    def write(answer: Any) -> tuple[str, Path]:
        program, (choose, mine, ranks) = tmp_path / "exercise_10_2.py", answer
        if ranks is None:
            return str(program), parts
        program.write_text("")
        (tmp_path / "out").mkdir()
        stored = [dgl.distributed.load_partition(str(parts), rank)[0] for rank in range(2)]
        inner = [each.ndata["inner_node"].bool() for each in stored]
        degrees = torch.cat([each.in_degrees()[own] for each, own in zip(stored, inner, strict=True)])
        owner = torch.cat([torch.full((int(own.sum()),), rank) for rank, own in enumerate(inner)])
        for rank in range(ranks):
            remote = (owner != rank).nonzero().flatten()
            kept = choose(degrees, remote, len(remote) // 4).tolist()
            found = {"capacity": len(remote) // 4, "kept": kept, "first come": [30, 100], "mine": mine}
            (tmp_path / "out" / f"exercise_10_2-{rank}.json").write_text(json.dumps(found))
        return str(program), parts

    return write


MINE = [70, 100]
COLD = {
    "nothing is kept": ((lambda _d, r, _c: r[:0], MINE, 2), "cached rows\n  got       0"),
    "all remote rows": ((lambda _d, r, _c: r, MINE, 2), "cached rows\n"),
    "the first remote rows": ((lambda _d, r, c: r[:c], MINE, 2), "total degree of the cached nodes"),
    "fewest neighbors": ((lambda d, r, c: r[d[r].argsort()[:c]], MINE, 2), "total degree of the cached nodes"),
    "of all nodes": ((lambda d, _r, c: d.argsort(descending=True)[:c], MINE, 2), "cached rows of local nodes"),
    "positions for ids": (
        (lambda d, r, c: d[r].argsort(descending=True)[:c], MINE, 2),
        "local nodes|total degree",
    ),
    "filled after the batches": ((hottest, [20, 100], 2), "more hits than"),
    "does not count": ((hottest, [0, 0], 2), "equal for both caches"),
    "no program": ((hottest, MINE, None), "exercise_10_2.py exists\n  got       False"),
    "on one machine": ((hottest, MINE, 1), "Start the program on both machines"),
}
test_the_hottest_rows, test_colder_rows = answer_tests(lesson_10.check_hot_rows, [(hottest, MINE, 2)], COLD, "caches")
