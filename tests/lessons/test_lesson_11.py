"""The checkers of lesson 11 know right from wrong; its helpers find, show and look; its pictures can be drawn."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from solution_support import lesson_code, solutions

from support.exercises import lesson_11
from support.lessons import breaking
from support.lessons.lifelines import Lifelines, Running, processes_of
from support.plots import breaking as plots
from tutorial_lib.cluster.coordinator import JobFailed
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.errors import InputError

pytestmark = pytest.mark.usefixtures("nothing_left")
LOST = ("reset by peer", "closed by peer", "Broken pipe", "refused", "no answer from", "signal 15")
COLLECTIVE = {"all_reduce", "barrier", "broadcast", "all_gather"}


ANSWERS = solutions("11")
first_cause = ANSWERS.first_cause
waited_for = ANSWERS.waited_for
wrong_lines = ANSWERS.wrong_lines


CHECKS = (lesson_11.check_first_cause, lesson_11.check_waited_for, lesson_11.check_wrong_lines)


@pytest.mark.parametrize(
    ("check", "answer"), zip(CHECKS, (first_cause, waited_for, wrong_lines), strict=True), ids=lambda f: f.__name__
)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(answer)
    assert re.fullmatch(r"Exercise \d: correct\n", capsys.readouterr().out)


def test_a_number_out_of_numpy_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    CHECKS[0](lambda reports: np.int64(first_cause(reports)))
    assert capsys.readouterr().out == "Exercise 1: correct\n"


WRONG = {
    "the first whose innermost call is none": (
        1,
        lambda stacks: next((r for r, frames in stacks.items() if frames[0] not in COLLECTIVE), 0),
        "innermost call is not always.*\n  got       0\n  expected  1",
    ),
    "the rarest innermost call": (
        1,
        lambda stacks: min(
            sorted(stacks)[::-1], key=lambda rank: [f[0] for f in stacks.values()].count(stacks[rank][0])
        ),
        "innermost call is not always.*\n  got       3\n  expected  1",
    ),
    "stub": (0, lambda _: None, "a killed trainer: .*\n  got       None\n  expected  1"),
    "the earliest of all": (0, lambda r: min(range(len(r)), key=lambda k: r[k]["time"]), "got       0\n  expected  1"),
    "the first that is no consequence": (
        0,
        lambda reports: next(k for k, r in enumerate(reports) if not any(word in r["message"] for word in LOST)),
        "order of their arrival.*\n  got       0\n  expected  2",
    ),
    "SIGTERM as a cause": (
        0,
        lambda reports: next((k for k, r in enumerate(reports) if "signal" in r["message"]), 0),
        "told to stop only after.*\n  got       0\n  expected  2",
    ),
    "second stub": (1, lambda _: None, "two ranks: .*\n  got       None\n  expected  1"),
    "innermost name only": (
        1,
        lambda stacks: next(rank for rank, frames in sorted(stacks.items())[::-1] if frames[0] not in COLLECTIVE),
        "innermost call is not always.*\n  got       3\n  expected  1",
    ),
    "no collective only": (
        1,
        lambda stacks: next((r for r, frames in stacks.items() if not COLLECTIVE & set(frames)), None),
        "one in another: .*\n  got       None\n  expected  0",
    ),
    "third stub": (2, lambda *_: None, r"all is well.*\n  got       None\n  expected  \{\}"),
    "ignores the order": (
        2,
        lambda lines, own: {k: w for k, w in wrong_lines(lines, own).items() if w != "wrong place"},
        r"two lines swapped(.|\n)*got       \{\}(.|\n)*hint: line k is for the machine that serves part k",
    ),
    "ignores the count": (
        2,
        lambda lines, own: {k: w for k, w in wrong_lines(lines, own).items() if w != "missing"},
        r"too few lines(.|\n)*hint: number the missing lines",
    ),
    "raises": (2, lambda *_: {1: ipaddress.ip_address("node2")}, "Your code raised ValueError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    CHECKS[number](answer)
    output = capsys.readouterr().out
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


# ---- helpers of the lesson


def test_plain_leaves_out_what_differs() -> None:
    assert breaking.plain("in f (a.py:12), called from b.py:3 in g") == "in f (a.py), called from b.py in g"
    assert breaking.plain("Client [7] waits on 10.77.0.1:50757") == "client K waits on 10.77.0.1:PORT"
    assert breaking.plain("/a/b/c/d.json has 2 parts") == ".../d.json has 2 parts"
    assert breaking.plain("/dev/shm was full") == "/dev/shm was full"
    assert breaking.plain("for 26 s: it is down") == "for N s: it is down"


def test_reports_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("logs") / "machine-1" / "trainer-0.log"
    failed = JobFailed(
        "trainer 0 (rank 1) on machine-1: exit code 3",
        machine="machine-1",
        role="trainer",
        index=0,
        rank=1,
        log=log,
        tail=["a", "b"],
    )
    for error in (failed, InputError("no", "do this\nand that")):
        breaking.show(error)
    assert capsys.readouterr().out.splitlines() == [
        "machine: machine-1   role: trainer   rank: 1",
        "message: trainer 0 (rank 1) on machine-1: exit code 3",
        "log:     machine-1/trainer-0.log",
        "        | b",
        "refused: no",
        "    do this",
        "    and that",
    ]


def test_a_call_that_does_not_fail() -> None:
    with pytest.raises(RuntimeError, match="the job ended well"):
        breaking.failure_of(lambda: None)


def test_step_losses_of_all_ranks_only() -> None:
    steps = [(1, 0, 0, 4.0), (0, 0, 0, 2.0), (0, 0, 1, 7.0)]
    events = [{"kind": "step", "rank": r, "epoch": e, "step": s, "loss": x} for r, e, s, x in steps]
    assert lesson_code("11", "step_losses").step_losses([*events, {"kind": "epoch"}]) == {(0, 0): 3.0}


def test_processes_are_found_by_log_and_environment(tmp_path: Path) -> None:
    env = {"TUTORIAL_MACHINE": "machine-1", "RANK": "1"}
    with (tmp_path / "trainer-0.log").open("w") as log:
        child = subprocess.Popen(["sleep", "60"], env=env, stderr=log)
    try:
        with Lifelines(tmp_path) as lives:
            pass
        found = Running(child.pid, "machine-1", "trainer", 1)
        assert list(lives.seen) == [found]
        assert str(found) == "machine-1 trainer (rank 1)"
        assert processes_of(tmp_path / "another") == []
    finally:
        child.kill()
        child.wait()
    assert processes_of(tmp_path) == []


def test_machines_are_looked_at_and_filled(emulation: None) -> None:
    with EmulatedCluster(2, shm_bytes=8 << 20) as cluster:
        breaking.fill_shm(cluster, cluster.machines[1], leave=1 << 20)
        other = cluster.popen(cluster.machines[0], [sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        found = breaking.look_inside(cluster)
        other.communicate(b"\n")
    assert found["machine-0"] == {"processes": 1, "ports": [], "/dev/shm": []}
    assert found["machine-1"] == {"processes": 0, "ports": [], "/dev/shm": ["not-ours"]}


def test_layout_keeps_its_machines() -> None:
    layout = breaking.BreakableLayout(shm_bytes=1 << 20)
    assert layout.cluster() is layout.cluster()
    assert (layout.cluster().shm_bytes, len(layout.cluster().machines)) == (1 << 20, 2)


def test_pictures() -> None:
    rows = [
        {"name": "a", "role": "trainer", "note": "x", "steps": [-0.2, 5.0], "start": -1.0, "stop": 0.0},
        {"name": "b", "role": "server", "note": "", "steps": [], "start": -1.0, "stop": 0.4},
    ]
    data = {"rows": rows, "victim": "a", "told": 0.2, "end": 0.5}
    titles = [ax.get_title() for ax in plots.deaths({"one": data, "two": data}).axes]
    assert titles == ["one", "two"]
    whole = {(epoch, step): 1.0 for epoch in range(2) for step in range(3)}
    starts = {"first": {(0, 0): 1.0, (0, 1): 1.0}, "second": whole}
    texts = [text.get_text() for ax in plots.losses(whole, starts, 3).axes for text in ax.texts]
    assert texts == ["epoch 0", "epoch 1", "killed"]
