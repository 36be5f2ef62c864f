"""The checkers of lesson 11 know right from wrong; its helpers find, show and look; its pictures can be drawn."""

import re
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import wait_until
from lifelines import Running, processes_of
from solution_support import assert_not_yet, solutions

from support.exercises import lesson_11
from support.lessons import breaking
from support.plots import breaking as plots
from tutorial_lib.errors import InputError
from tutorial_lib.launcher.failure import failure
from tutorial_lib.launcher.jobspec import JobSpec, Machine, Role

pytestmark = pytest.mark.usefixtures("nothing_left")
LOST = ("reset by peer", "closed by peer", "Broken pipe", "refused", "no answer from", "signal 15")
COLLECTIVE = {"all_reduce", "barrier", "broadcast", "all_gather"}


ANSWERS = solutions("11")
first_cause = ANSWERS.first_cause
waited_for = ANSWERS.waited_for

CHECKS = (lesson_11.check_first_cause, lesson_11.check_waited_for)


@pytest.mark.parametrize(
    ("check", "answer"), zip(CHECKS, (first_cause, waited_for), strict=True), ids=lambda f: f.__name__
)
def test_right_answer(check, answer, capsys):
    check(answer)
    assert re.fullmatch(r"Exercise \d: correct\n", capsys.readouterr().out)


def test_a_number_out_of_numpy_is_a_number(capsys):
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
    "raises": (1, lambda _: [][0], "Your code raised IndexError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number, answer, said, capsys):
    CHECKS[number](answer)
    output = capsys.readouterr().out
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


# ---- helpers of the lesson


def test_plain_leaves_out_what_differs():
    assert breaking.plain("in f (a.py:12), called from b.py:3 in g") == "in f (a.py), called from b.py in g"
    assert breaking.plain("Client [7] waits on 10.77.0.1:50757") == "client K waits on 10.77.0.1:PORT"
    assert breaking.plain("/a/b/c/d.json has 2 parts") == ".../d.json has 2 parts"
    assert breaking.plain("/dev/shm was full") == "/dev/shm was full"
    assert breaking.plain("for 26 s: it is down") == "for N s: it is down"


def test_reports_are_shown(capsys):
    machines = [Machine("machine-0", "10.0.0.1"), Machine("machine-1", "10.0.0.2")]
    spec = JobSpec(machines, [Role("trainer", 1, ["true"], ranked=True)], cwd="", log_dir="logs", master_port=1)
    failed = failure(spec, 1, "trainer", 0, "exit code 3", ["a", "b"])
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


def test_a_call_that_does_not_fail():
    with pytest.raises(RuntimeError, match="the job ended well"):
        breaking.failure_of(lambda: None)


def test_processes_are_found_by_their_log(tmp_path):
    for name in ("machine-0/trainer-0.log", "machine-0/trainer-1.log", "machine-1/trainer-1.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with (tmp_path / "machine-1" / "trainer-1.log").open("w") as log:
        child = subprocess.Popen(["sleep", "60"], stderr=log)
    try:
        (found,) = wait_until(lambda: processes_of(tmp_path), "the process")
        assert found == Running(child.pid, "machine-1", "trainer", 3)
        assert str(found) == "machine-1 trainer (rank 3)"
        assert processes_of(tmp_path / "another") == []
    finally:
        child.kill()
        child.wait()
    assert processes_of(tmp_path) == []


SETTINGS = {"lr": 0.01, "batch_size": 256, "hidden": 16, "dropout": 0.5, "fanouts": "10,10", "seed": 0}


def checkpoint(folder: Path, **changes: Any) -> Path:
    """What the first run of exercise 3 leaves, with some of it changed."""
    saved = {"model": {}, "optimizer": {"state": {0: {"step": 16}}}, "epochs": [{}, {}], "args": SETTINGS}
    torch.save({**saved, **changes}, folder / "x.pt")
    return folder / "x.pt"


SAID = ["Traceback (most recent call last):", '  raise ValueError("no")', "ValueError: lr is 0.5, and was 0.01"]
AGAIN = [*SAID[:2], "ValueError: fanouts are 5,5, and were 10,10"]
LAUNCHED = [
    "    0.5 s  DGL servers are loading their parts",
    "[machine-1 0] Traceback (most recent call last):",
    "[machine-1 0] ValueError: lr is 0.5, and was 0.01",
    "error: trainer 0 (rank 1) on machine-1: ValueError: lr is 0.5, and was 0.01",
    "log: logs/machine-1/trainer-0.log",
    "  | Traceback (most recent call last):",
    "  | ValueError: lr is 0.5, and was 0.01",
]


def refuses(capsys: pytest.CaptureFixture[str], *answer: Any) -> str:
    lesson_11.check_refuses(*answer)
    return capsys.readouterr().out


def test_a_run_with_other_settings_is_refused(tmp_path, capsys):
    for changes in ({}, {"args": None, **SETTINGS}, {"args": Namespace(**SETTINGS)}):
        assert refuses(capsys, checkpoint(tmp_path, **changes), SAID, AGAIN) == "Exercise 3: correct\n"
    again = [line.replace("lr is 0.5, and was 0.01", "fanouts are 5,5") for line in LAUNCHED]
    assert refuses(capsys, checkpoint(tmp_path), LAUNCHED, again) == "Exercise 3: correct\n"


NOT_REFUSED = {
    "trains and saves": ({"epochs": [{}] * 3}, SAID, AGAIN, "epochs in the checkpoint\n  got       3"),
    "trains": ({}, ["epoch 2  loss 1.0"], AGAIN, "with --lr 0.5: epochs that it has trained\n  got       1"),
    "trains on machines": ({}, ["[machine-0 0] epoch 2  loss 1.0"], AGAIN, "trained\n  got       1"),
    "no settings": ({"args": {}}, SAID, AGAIN, "the option batch_size in the checkpoint\n  got       'not there'"),
    "without the seed": ({"args": {**SETTINGS, "seed": None}}, SAID, AGAIN, "the option seed"),
    "no optimizer": ({"optimizer": None}, SAID, AGAIN, "what the optimizer remembers"),
    "an empty optimizer": ({"optimizer": {"state": {}}}, SAID, AGAIN, "what the optimizer remembers"),
    "exits without a word": ({}, [], AGAIN, "has said something"),
    "another error": ({}, ["KeyError: 'lr'"], AGAIN, "ended with a ValueError"),
    "names no option": ({}, ["ValueError: other settings"], AGAIN, "options that the error names"),
    "names all": ({}, [f"ValueError: {' '.join(SETTINGS)}"], AGAIN, "options that the error names"),
    "lr alone is compared": ({}, SAID, ["epoch 2  loss 1.0"], "with --fanouts 5,5: epochs that it has trained"),
    "always says lr": ({}, SAID, SAID, "with --fanouts 5,5: options that the error names"),
    "not run again": ({}, SAID, [], "with --fanouts 5,5: it has said something"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said", "again", "complaint"), NOT_REFUSED.values(), ids=NOT_REFUSED.keys())
def test_a_run_that_is_not_refused(changes, said, again, complaint, tmp_path, capsys):
    assert_not_yet(refuses(capsys, checkpoint(tmp_path, **changes), said, again), complaint)


def test_the_picture():
    (ax,) = plots.restart([3.0, 2.0, 1.0], {"a": (0, [3.0]), "b": (1, [2.0, 1.0])}, killed=1.5).axes
    assert [list(line.get_xdata()) for line in ax.lines[:3]] == [[0, 1, 2], [0], [1, 2]]
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"undisturbed", "a", "b"}
