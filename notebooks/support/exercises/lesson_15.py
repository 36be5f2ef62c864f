"""Checkers of lesson 15, graphs with several types on many machines."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import Unfinished, exercise, expect, expect_type, plain
from support.exercises.programs import results

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
        got = typed_ids({name: [list(pair) for pair in own] for name, own in ranges.items()}, torch.tensor(ids))
        what = f"ranges {ranges}, nodes {ids}"
        expect_type(f"{what}: what came back", got, "tuple of 2")
        expect(f"{what}: types", list(got[0]), list(names), "the type whose range holds the id: first <= id < end")
        hint = "the nodes of this type in all earlier parts come first: add the lengths of their ranges"
        expect(f"{what}: type-wise ids", plain(got[1]), numbers, hint)


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
    (path,) = results(str(program), f"types/{program.stem}.json")
    found, earlier = json.loads(path.read_text()), json.loads(before.read_text())
    expect("ranks of the job", found["ranks"], 2, "start it with launch --emulate 2")
    expect("epochs", len(found["epochs"]), len(earlier["epochs"]), "take the options of the run that you compare with")
    hint = "the fan-out of each relation that begins at a field is 0; make_sampler has a number for each relation"
    expect("rows of fields that were read in training", found["rows"][FIELD][0], 0, hint)
    for name in sorted(earlier["rows"].keys() - {FIELD}):
        share = found["rows"][name][0] / earlier["rows"][name][0]
        hint = "only relations that begin at a field go; the batches and the other relations stay"
        expect(f"more than half of the rows of type {name} are still read", share > 0.5, True, hint)
    if not found["test_accuracy"] >= earlier["test_accuracy"] - WORSE:
        hint = "does the inference read fields? What training never reads has not learned anything"
        lines = ["accuracy on the test papers", f"  got       {found['test_accuracy']:.3f}"]
        lines += [f"  expected  at least {earlier['test_accuracy'] - WORSE:.3f}", f"  hint: {hint}"]
        raise Unfinished("\n".join(lines))
    share, saved = 1 - _remote_bytes(found) / _remote_bytes(earlier), plain(saved)
    if type(saved) not in (int, float) or not abs(saved - share) <= TOLERANCE:
        hint = "bytes, not rows: features of papers are wider than learned rows; 1 - bytes of this run / bytes before"
        lines = [
            "share of the bytes that is saved",
            f"  got       {saved!r}",
            f"  expected  {share:.3f}, within {TOLERANCE}",
        ]
        raise Unfinished("\n".join([*lines, f"  hint: {hint}"]))


def _remote_bytes(found: Mapping[str, Any]) -> int:
    return sum(remote * 4 * found["widths"].get(name, HIDDEN) for name, (_read, remote) in found["rows"].items())
