"""The checkers of lesson 15 distinguish right and wrong answers."""

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
from solution_support import NOTEBOOKS, answer_tests, solutions

from support.exercises import lesson_15

ANSWERS = solutions("15")
typed_ids = ANSWERS.typed_ids


def end_counted_in(ranges: Any, ids: torch.Tensor) -> Any:
    return typed_ids({name: [[first, end + 1] for first, end in own] for name, own in ranges.items()}, ids)


def within_the_range(ranges: Any, ids: torch.Tensor) -> Any:
    starts = sorted(first for own in ranges.values() for first, _end in own)
    return typed_ids(ranges, ids)[0], torch.tensor([one - max(s for s in starts if s <= one) for one in ids.tolist()])


WRONG = {
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'tuple of 2'"),
    "names alone": (lambda r, i: typed_ids(r, i)[0], "expected  'tuple of 2'"),
    "ids as they are": (
        lambda r, i: (typed_ids(r, i)[0], i),
        r"type-wise IDs\n  got       \[0, 2, 3, 7, 8, 9, 10, 11\]\n  expected  \[0, 2, 0, 4, 3, 4, 5, 6\]",
    ),
    "one type": (lambda r, i: (["a"] * len(i), typed_ids(r, i)[1]), r"types\n  got       \['a', 'a', 'a'"),
    "end counted in": (end_counted_in, "types"),
    "earlier parts forgotten": (within_the_range, "Add the lengths of the ranges"),
}


def numpy(ranges: Any, ids: torch.Tensor) -> Any:
    return typed_ids(ranges, ids)[0], typed_ids(ranges, ids)[1].numpy()


test_right_ids, test_wrong_ids = answer_tests(lesson_15.check_typed_ids, [typed_ids, numpy], WRONG)


BEFORE = {
    "ranks": 2,
    "epochs": [{}] * 5,
    "test_accuracy": 0.80,
    "widths": {"paper": 64},
    "rows": {"author": [10_000, 4_500], "field": [1_500, 700], "paper": [14_000, 6_500]},
}
AFTER = {**BEFORE, "test_accuracy": 0.78, "rows": {"author": [9_000, 4_000], "field": [0, 0], "paper": [9_000, 4_100]}}
BYTES = [128 * rows[0] + 256 * rows[1] for rows in ((5_200, 6_500), (4_000, 4_100))]  # of both runs
SAVED = 1 - BYTES[1] / BYTES[0]


@pytest.fixture
def job(tmp_path: Path) -> Callable[[Any], tuple[Any, Path, Path]]:
    """Return a share with program and results of lesson and reader, some of them changed."""

    def write(answer: Any) -> tuple[Any, Path, Path]:
        saved, changes = answer
        program, folder = tmp_path / "exercise_15_2.py", tmp_path / "out" / "types"
        folder.mkdir(parents=True)
        (folder / "trained.json").write_text(json.dumps(BEFORE))
        if changes is not None:
            program.write_text("")
            (folder / "exercise_15_2.json").write_text(json.dumps({**AFTER, **changes}))
            if "late" in changes:
                os.utime(folder / "exercise_15_2.json", (0, 0))
        return saved, program, folder / "trained.json"

    return write


JOBS = [(saved, {}) for saved in (SAVED, SAVED + 0.009, np.float32(SAVED), torch.tensor(SAVED), np.float64(SAVED))]
WRONG_JOBS = {
    "stub": ((None, {}), "got       None\n"),
    "rows instead of bytes": ((1 - 8_100 / 11_700, {}), "1 - bytes of this run"),
    "what is left": ((1 - SAVED, {}), "share of the bytes"),
    "in percent": ((100 * SAVED, {}), "share of the bytes"),
    "as a text": ((f"{SAVED:.0%}", {}), "share of the bytes"),
    "fields in one hop still": (
        (SAVED, {"rows": {**AFTER["rows"], "field": [300, 140]}}),
        "rows of fields that were read in training",
    ),
    "authors left out as well": (
        (SAVED, {"rows": {**AFTER["rows"], "author": [0, 0]}}),
        "half of the rows of type author",
    ),
    "one process": ((SAVED, {"ranks": 1}), "launch --emulate 2"),
    "one epoch": ((SAVED, {"epochs": [{}]}), "Use the options of the run"),
    "inference with fields": ((SAVED, {"test_accuracy": 0.61}), "never reads are untrained"),
    "older than the program": ((SAVED, {"late": True}), "has failed, or you have changed it"),
    "no program": ((SAVED, None), "exercise_15_2.py exists"),
}
test_right_job, test_wrong_job = answer_tests(lesson_15.check_without_fields, JOBS, WRONG_JOBS, "job")


@pytest.mark.whole_run
@pytest.mark.parametrize("words", [[], ["--out", "o", "--checkpoint", "c"]])
def test_program_without_result_path_is_refused(words):
    words = ["--graph_name", "g", "--part_config", "p", "--ip_config", "i", "--weights", "w", *words]
    program = [sys.executable, "train_types.py", *words]
    ended = subprocess.run(program, cwd=NOTEBOOKS / "scripts", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--out is needed, and there are no checkpoints" in ended.stderr
