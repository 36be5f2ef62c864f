"""The checkers of lesson 10 know right from wrong; its helpers compare sources, wait and collect; its pictures draw."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import assert_not_yet, lesson_code, solutions, verdict

from support.exercises import lesson_10
from support.lessons import multi_machine, multi_machine_single
from support.lessons import multi_machine_jobs as jobs
from support.plots import multi_machine as plots
from tutorial_lib.batches.nodes import sampling_threads
from tutorial_lib.processes import fix_openmp, fork
from tutorial_lib.trainer.events import PHASES

ANSWERS = solutions("10")
plan_epoch = ANSWERS.plan_epoch
global_accuracy = ANSWERS.global_accuracy
remote_bytes = ANSWERS.remote_bytes


RIGHT = {
    lesson_10.check_plan_epoch: plan_epoch,
    lesson_10.check_global_accuracy: global_accuracy,
    lesson_10.check_remote_bytes: remote_bytes,
}
WRONG = [
    (lesson_10.check_plan_epoch, lambda *_: None, "got       'NoneType'\n  expected  'tuple of 3'"),
    (
        lesson_10.check_plan_epoch,
        lambda n, r, b, a: ([-(-n // (r * b))] * r, r * b, a[1] * r * b / a[0]),
        r"got       \[6, 6, 6, 6\]\n  expected  \[6, 6, 6, 5\]",
    ),
    (lesson_10.check_plan_epoch, lambda n, r, b, a: (*plan_epoch(n, r, b, a)[:2], a[1]), r"expected  0.02\n  hint"),
    (lesson_10.check_plan_epoch, lambda n, r, b, a: (plan_epoch(n, r, b, a)[0], b, 0.01), r"got       49\n"),
    (lesson_10.check_global_accuracy, lambda *_: None, r"got       None\n  expected  0.625"),
    (lesson_10.check_global_accuracy, lambda a, _c: sum(a) / len(a), r"got       0.75\n  expected  0.625"),
    (
        lesson_10.check_global_accuracy,
        lambda a, c: sum(x * y for x, y in zip(a, c, strict=True)) / sum(c),
        r"got       nan\n  expected  0.5",
    ),
    (lesson_10.check_remote_bytes, lambda *_: None, "got       None\n  expected  2000"),
    (lesson_10.check_remote_bytes, lambda b, f, e, w: remote_bytes(b, f, e, w) // 4, "has four bytes"),
    (
        lesson_10.check_remote_bytes,
        lambda b, f, e, w: remote_bytes([torch.cat(b).unique()], f, e, w),
        "pulled twice",
    ),
    (lesson_10.check_remote_bytes, lambda b, f, e, w: remote_bytes(b, f, e + 1, w), "first node of the next part"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT.items(), ids=lambda f: f.__name__)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


@pytest.mark.parametrize(("check", "answer", "complaint"), WRONG)
def test_wrong_answer(
    check: Callable[[Any], None], answer: Any, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_not_yet(verdict(capsys, check, answer), complaint)


def test_a_reader_s_tensor_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    said = verdict(capsys, lesson_10.check_remote_bytes, lambda *args: torch.tensor(remote_bytes(*args)))
    assert said == "Exercise 3: correct\n"


def test_diff_names_what_changes() -> None:
    diff = jobs.SourceDiff(multi_machine_single.train, multi_machine.train)
    new = [line for line in diff.lines if line.startswith("+ ")]
    for word in ("initialize(", "init_process_group(", "DistGraph(", "node_split(", "DistNodeDataLoader(", "Join("):
        assert any(word in line for line in new), word
    assert diff.count("+") == len(new)
    assert diff.count("+") + diff.count("-") + diff.count(" ") == len(diff.lines)
    assert "&quot;" in diff._repr_html_()  # escaped
    assert not any(line != line.rstrip() for line in repr(diff).splitlines())


def test_logits_come_back_in_the_original_order(tmp_path: Path) -> None:
    logits = np.arange(12, dtype=np.float32).reshape(6, 2)
    node_map = np.array([4, 2, 0, 5, 1, 3])  # original id of each new node
    for rank, nodes in enumerate((np.array([2, 0, 1]), np.array([5, 3, 4]))):
        np.savez(tmp_path / f"logits-{rank}.npz", nodes=nodes, logits=logits[node_map[nodes]])
    part = SimpleNamespace(node_map=node_map)
    assert np.array_equal(jobs.collect_logits(part, tmp_path).numpy(), logits)


def test_both_ways_of_join_agree() -> None:
    train_uneven = lesson_code("10", "train_uneven").train_uneven
    long, short = fork(fix_openmp(train_uneven), 2, ([3, 1],), backend="gloo", threads=1, timeout=60)
    assert long["Join([model])"] == long["model.join()"] == [-0.5, -1.5, -3.0]
    assert short["model.join()"] == [-0.5]


def test_run_in_this_process() -> None:
    settings = SimpleNamespace(
        dataset="synthetic-products", scale=0.002, num_classes=47, num_epochs=1, batch_size=200, seed=0
    )
    with sampling_threads(1):
        run, again = (jobs.run_single(settings) for _ in range(2))  # type: ignore[arg-type]
    assert len(run.losses(0)) == -(-run.of("split")[0]["nodes"] // 200)
    assert run.losses(0) == again.losses(0)
    assert torch.equal(run.logits, again.logits)
    assert run.accuracy("val") == run.of("val")[0]["right"] / run.of("val")[0]["count"]


def test_pictures() -> None:
    phases = [
        {"rank": rank, "epochs": 1, "seconds": dict.fromkeys(PHASES, 0.1), "bytes_remote": 1e6 * rank}
        for rank in range(2)
    ]
    figures = [
        plots.loss_curves({"a": [3.0, 2.0], "b": [3.0]}, 1),
        plots.wires({"fast": phases, "slow": phases}),
    ]
    assert [list(line.get_ydata()) for line in figures[0].axes[0].lines[:2]] == [[3.0, 2.0], [3.0]]
    seconds, megabytes = ([text.get_text().strip() for text in ax.texts] for ax in figures[1].axes)
    assert seconds == [f"{0.1 * len(PHASES):.2f}"] * 2
    assert megabytes == ["1.0", "1.0"]
