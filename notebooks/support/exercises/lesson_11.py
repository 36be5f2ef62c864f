"""Checkers of lesson 11, when things break."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.exercises import exercise, expect

Report = dict[str, Any]
LOST = "[10.0.0.2]:41873: Connection reset by peer"
STOPPED = "killed by signal 15 (SIGTERM)"


# description of the case, then the position of the first cause and the reports
CAUSE_CASES: dict[str, tuple[Any, ...]] = {
    "a killed trainer": (
        1,
        (0.1, "trainer 0 (rank 0) on machine-0", f"RuntimeError: Read error {LOST}"),
        (1.3, "trainer 0 (rank 1) on machine-1", "killed by signal 9 (SIGKILL)"),
        (1.5, "server 0 on machine-0", STOPPED),
    ),
    "reports sorted by arrival, not by time": (
        2,
        (7.9, "trainer 0 (rank 2) on machine-2", "ValueError: labels must be at least 0"),
        (7.2, "trainer 0 (rank 1) on machine-1", "RuntimeError: Connection closed by peer [10.0.0.1]"),
        (7.1, "server 0 on machine-0", "killed by signal 7 (SIGBUS)"),
        (8.0, "server 0 on machine-1", STOPPED),
    ),
    "SIGTERM is reported before the cause": (
        2,
        (2.0, "server 0 on machine-1", STOPPED),
        (1.9, "sampler of trainer 0 (rank 1) on machine-1", "OSError: Broken pipe"),
        (1.8, "trainer 1 (rank 3) on machine-1", "exit code 3"),
    ),
    "only consequences": (
        1,
        (26.4, "agent on machine-1", "no answer from machine-0 (10.0.0.1) for 26 s"),
        (25.9, "agent on machine-0", "no answer from machine-1 (10.0.0.2) for 26 s"),
    ),
}


@exercise(1)
def check_first_cause(first_cause: Callable[[list[Report]], int]) -> None:
    """Exercise 1: find the first cause among many reports."""
    for what, (expected, *rows) in CAUSE_CASES.items():
        got = first_cause([dict(zip(("time", "process", "message"), row, strict=True)) for row in rows])
        hint = "Ignore lost connections and SIGTERM if there are other reports. Then return the earliest report."
        expect(f"{what}: position of the first cause", got, expected, hint)


IN_STEP = "all_reduce step train main"
# description of the case, the rank that blocks the others, and the calls of each rank, innermost first
WAIT_CASES: dict[str, tuple[Any, ...]] = {
    "two ranks": (1, "all_reduce wrapper train main", "wait_for_file train main"),
    "four ranks, one reads a file": (2, IN_STEP, IN_STEP, "read open_file next_batch train main", IN_STEP),
    "the innermost call is not always the collective one": (
        1,
        "wait backoff barrier prepare main",
        "sleep retry download prepare main",
        "barrier prepare main",
        "poll wait barrier prepare main",
    ),
    "all in collective calls, one in a different call": (0, "wait barrier save_best main", IN_STEP, f"wait {IN_STEP}"),
}


@exercise(2)
def check_waited_for(waited_for: Callable[[dict[int, list[str]]], int]) -> None:
    """Exercise 2: find the rank that blocks the other ranks."""
    for what, (expected, *stacks) in WAIT_CASES.items():
        got = waited_for({rank: frames.split() for rank, frames in enumerate(stacks)})
        hint = "Find the first collective call in each stack. One rank has none, or another one."
        expect(f"{what}: the rank that the others wait for", got, expected, hint)


SETTINGS = ("batch_size", "fanouts", "hidden", "dropout", "lr", "seed")


def check_refuses(checkpoint: str | Path, first_output: Sequence[str], second_output: Sequence[str]) -> None:
    """Exercise 3: the learner's program refuses to continue its checkpoint with other options.

    Args:
        checkpoint: checkpoint of a run of two epochs. The two later runs request three epochs.
        first_output: output of the run with ``--lr 0.5``, started alone or with launch.
        second_output: output of the run with ``--fanouts 5,5``.
    """
    exercise(3)(lambda _: _check_refuses(Path(checkpoint), list(first_output), list(second_output)))(None)


def _check_refuses(checkpoint: Path, first_output: list[str], second_output: list[str]) -> None:
    import torch

    hint = "Run the program with --checkpoint and --num_epochs 2."
    expect("the checkpoint exists", checkpoint.exists(), True, hint)
    saved = torch.load(checkpoint)
    hint = "The first run trains two epochs. The later runs must exit before they train or save."
    expect("epochs in the checkpoint", len(saved.get("epochs", [])), 2, hint)
    hint = "Save what train.save writes, and the options."
    expect("the checkpoint contains model and optimizer", {"model", "optimizer"} <= set(saved), True, hint)
    has_state = isinstance(saved["optimizer"], dict) and bool(saved["optimizer"].get("state"))
    expect("the checkpoint contains the optimizer state", has_state, True, "Save optimizer.state_dict().")
    options = _read_options(saved)
    wanted = {"lr": 0.01, "batch_size": 256, "hidden": 16, "dropout": 0.5, "fanouts": "10,10", "seed": 0}
    for name in SETTINGS:
        hint = "Save the options of the first run, vars(args)."
        expect(f"the option {name} in the checkpoint", options.get(name, "missing"), wanted[name], hint)
    _check_refusal("the run with --lr 0.5", "lr", first_output)
    _check_refusal("the run with --fanouts 5,5", "fanouts", second_output)


def _check_refusal(run: str, option: str, output: list[str]) -> None:
    """Check the output of a run that must refuse to continue because of one option."""
    lines = [re.sub(r"^(\[[\w-]+ \d+\] |  \| )", "", line) for line in output if line.strip()]  # prefixes of launch
    expect(f"{run}: the run printed a message", bool(lines), True, "Store its output: NAME = !COMMAND 2>&1")
    trained = [line for line in lines if line.startswith("epoch ")]
    expect(f"{run}: trained epochs", len(trained), 0, "Compare the options in load, before the first epoch.")
    errors = [line for line in lines if line.startswith("ValueError")]
    expect(f"{run}: it raised a ValueError", bool(errors), True, f"The last line is {lines[-1][:80]!r}.")
    named = [name for name in SETTINGS if re.search(rf"\b{name}\b", errors[-1])]
    hint = f"Only {option} has changed. num_epochs may differ, and the error must not name other options."
    expect(f"{run}: options in the error", named, [option], hint)


def _read_options(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the options, which may be stored anywhere in the checkpoint."""
    options = dict(saved)
    for value in saved.values():
        if isinstance(value, dict) and "lr" in value:
            options |= value
        elif hasattr(value, "lr"):
            options |= vars(value)
    return options
