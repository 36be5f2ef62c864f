"""The checkers of lesson 11 distinguish right and wrong answers."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_11

LOST = ("reset by peer", "closed by peer", "Broken pipe", "refused", "no answer from", "signal 15")
COLLECTIVE = {"all_reduce", "barrier", "broadcast", "all_gather"}


ANSWERS = solutions("11")
first_cause = ANSWERS.first_cause


CAUSES = {
    "stub": (lambda _: None, "a killed trainer: .*\n  got       None\n  expected  1"),
    "the earliest of all": (lambda r: min(range(len(r)), key=lambda k: r[k]["time"]), "got       0\n  expected  1"),
    "the first that is no consequence": (
        lambda reports: next(k for k, r in enumerate(reports) if not any(word in r["message"] for word in LOST)),
        "sorted by arrival.*\n  got       0\n  expected  2",
    ),
    "SIGTERM as a cause": (
        lambda reports: next((k for k, r in enumerate(reports) if "signal" in r["message"]), 0),
        "SIGTERM is reported before.*\n  got       0\n  expected  2",
    ),
}
test_right_cause, test_wrong_cause = answer_tests(
    lesson_11.check_first_cause, [first_cause, lambda reports: np.int64(first_cause(reports))], CAUSES
)

WAITS = {
    "stub": (lambda _: None, "two ranks: .*\n  got       None\n  expected  1"),
    "the first whose innermost call is none": (
        lambda stacks: next((r for r, frames in stacks.items() if frames[0] not in COLLECTIVE), 0),
        "innermost call is not always.*\n  got       0\n  expected  1",
    ),
    "innermost name only": (
        lambda stacks: next(rank for rank, frames in sorted(stacks.items())[::-1] if frames[0] not in COLLECTIVE),
        "innermost call is not always.*\n  got       3\n  expected  1",
    ),
    "no collective only": (
        lambda stacks: next((r for r, frames in stacks.items() if not COLLECTIVE & set(frames)), None),
        "one in a different call: .*\n  got       None\n  expected  0",
    ),
    "raises": (lambda _: [][0], "Your code raised IndexError"),
}
test_right_wait, test_wrong_wait = answer_tests(lesson_11.check_waited_for, [ANSWERS.waited_for], WAITS)


SETTINGS = {"lr": 0.01, "batch_size": 256, "hidden": 16, "dropout": 0.5, "fanouts": "10,10", "seed": 0}


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return changed files of the first run of exercise 3, and the output of the other two runs."""

    def write(answer: tuple[Any, ...]) -> tuple[Any, ...]:
        changes, said, again = answer
        saved = {"model": {}, "optimizer": {"state": {0: {"step": 16}}}, "epochs": [{}, {}], "args": SETTINGS}
        torch.save({**saved, **changes}, tmp_path / "x.pt")
        return tmp_path / "x.pt", said, again

    return write


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


LAUNCHED_AGAIN = [line.replace("lr is 0.5, and was 0.01", "fanouts are 5,5") for line in LAUNCHED]
REFUSED = [
    ({}, SAID, AGAIN),
    ({"args": None, **SETTINGS}, SAID, AGAIN),
    ({"args": Namespace(**SETTINGS)}, SAID, AGAIN),
    ({}, LAUNCHED, LAUNCHED_AGAIN),
]
NOT_REFUSED = {
    "trains and saves": (({"epochs": [{}] * 3}, SAID, AGAIN), "epochs in the checkpoint\n  got       3"),
    "trains": (({}, ["epoch 2  loss 1.0"], AGAIN), "with --lr 0.5: trained epochs\n  got       1"),
    "trains on machines": (({}, ["[machine-0 0] epoch 2  loss 1.0"], AGAIN), "trained epochs\n  got       1"),
    "no settings": (({"args": {}}, SAID, AGAIN), "the option batch_size in the checkpoint\n  got       'missing'"),
    "without the seed": (({"args": {**SETTINGS, "seed": None}}, SAID, AGAIN), "the option seed"),
    "an empty optimizer": (({"optimizer": {"state": {}}}, SAID, AGAIN), "contains the optimizer state"),
    "exits without a word": (({}, [], AGAIN), "printed a message"),
    "another error": (({}, ["KeyError: 'lr'"], AGAIN), "it raised a ValueError"),
    "names no option": (({}, ["ValueError: other settings"], AGAIN), "options in the error"),
    "names all": (({}, [f"ValueError: {' '.join(SETTINGS)}"], AGAIN), "options in the error"),
    "lr alone is compared": (({}, SAID, ["epoch 2  loss 1.0"]), "with --fanouts 5,5: trained epochs"),
    "always says lr": (({}, SAID, SAID), "with --fanouts 5,5: options in the error"),
}
test_a_run_that_is_refused, test_a_run_that_is_not_refused = answer_tests(
    lesson_11.check_refuses, REFUSED, NOT_REFUSED, "refused"
)
