"""Checkers of lesson 15, graphs with several types on many machines."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import Unfinished, exercise, expect, expect_type, plain
from support.exercises.programs import find_results

# node_map of a partition description, homogeneous IDs -> types and type-wise IDs
RANGES = (
    (
        {"a": [[0, 3], [8, 10]], "b": [[3, 8], [10, 12]]},
        [0, 2, 3, 7, 8, 9, 10, 11],
        "aabbaabb",
        [0, 2, 0, 4, 3, 4, 5, 6],
    ),
    (
        {"x": [[0, 4], [5, 6], [9, 12]], "y": [[4, 5], [6, 9], [12, 13]]},
        [12, 4, 5, 8, 6, 0, 11],
        "yyxyyxx",
        [4, 0, 4, 3, 1, 0, 7],
    ),
    ({"o": [[0, 2], [2, 5]]}, [4, 0], "oo", [4, 0]),
)


@exercise(1)
def check_typed_ids(typed_ids: Callable[[Mapping[str, list[list[int]]], Tensor], Any]) -> None:
    """Exercise 1: type and type-wise ID of nodes with homogeneous IDs."""
    for ranges, ids, names, numbers in RANGES:
        got = typed_ids({name: [list(pair) for pair in pairs] for name, pairs in ranges.items()}, torch.tensor(ids))
        what = f"ranges {ranges}, nodes {ids}"
        expect_type(f"{what}: type of the result", got, "tuple of 2")
        hint = "Return the type whose range contains the ID, first <= ID < end."
        expect(f"{what}: types", list(got[0]), list(names), hint)
        hint = "Add the lengths of the ranges of this type in all earlier parts."
        expect(f"{what}: type-wise IDs", plain(got[1]), numbers, hint)


FIELD, HIDDEN = "field", 32
WORSE = 0.05  # difference of accuracies that can occur by chance
TOLERANCE = 0.01


def check_without_fields(saved: Any, program: str | Path, before: str | Path) -> None:
    """Exercise 2: a job samples no neighbors of type field. Check the share of bytes that this saves.

    Args:
        saved: the share, from 0 to 1.
        program: path of the learner's program, which has written types/NAME.json in its folder ``out``.
        before: results of the lesson's program.
    """
    exercise(2)(lambda answer: _check_job(answer, Path(program), Path(before)))(saved)


def _check_job(saved: Any, program: Path, before: Path) -> None:
    (path,) = find_results(str(program), f"types/{program.stem}.json")
    result = json.loads(path.read_text())
    earlier = json.loads(before.read_text())
    expect("ranks of the job", result["ranks"], 2, "Start the program with launch --emulate 2.")
    hint = "Use the options of the run that you compare with."
    expect("number of epochs", len(result["epochs"]), len(earlier["epochs"]), hint)
    hint = "Set the fan-out of each relation that has the source type field to 0 in make_sampler."
    expect("rows of fields that were read in training", result["rows"][FIELD][0], 0, hint)
    for name in sorted(earlier["rows"].keys() - {FIELD}):
        share = result["rows"][name][0] / earlier["rows"][name][0]
        hint = "Omit only the relations that have the source type field. Keep the batches and the other relations."
        expect(f"the job still reads more than half of the rows of type {name}", share > 0.5, True, hint)
    if not result["test_accuracy"] >= earlier["test_accuracy"] - WORSE:
        hint = "Does the inference read fields? Rows that training never reads are untrained."
        lines = ["accuracy on the test papers", f"  got       {result['test_accuracy']:.3f}"]
        lines += [f"  expected  at least {earlier['test_accuracy'] - WORSE:.3f}", f"  hint: {hint}"]
        raise Unfinished("\n".join(lines))
    share = 1 - _remote_bytes(result) / _remote_bytes(earlier)
    saved = plain(saved)
    if type(saved) not in (int, float) or not abs(saved - share) <= TOLERANCE:
        hint = "Compute 1 - bytes of this run / bytes before. Features of papers are wider than embeddings."
        lines = ["share of the bytes that your program saves", f"  got       {saved!r}"]
        lines += [f"  expected  {share:.3f}, within {TOLERANCE}", f"  hint: {hint}"]
        raise Unfinished("\n".join(lines))


def _remote_bytes(result: Mapping[str, Any]) -> int:
    return sum(remote * 4 * result["widths"].get(name, HIDDEN) for name, (_read, remote) in result["rows"].items())
