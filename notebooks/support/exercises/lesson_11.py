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
    "reports in the order of their arrival, not of their times": (
        2,
        (7.9, "trainer 0 (rank 2) on machine-2", "ValueError: labels must be at least 0"),
        (7.2, "trainer 0 (rank 1) on machine-1", "RuntimeError: Connection closed by peer [10.0.0.1]"),
        (7.1, "server 0 on machine-0", "killed by signal 7 (SIGBUS)"),
        (8.0, "server 0 on machine-1", STOPPED),
    ),
    "the job was told to stop only after the cause": (
        2,
        (2.0, "server 0 on machine-1", STOPPED),
        (1.9, "sampler of trainer 0 (rank 1) on machine-1", "OSError: Broken pipe"),
        (1.8, "trainer 1 (rank 3) on machine-1", "exit code 3"),
    ),
    "nothing but consequences": (
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
        hint = "a lost connection and SIGTERM are consequences; of the rest, the earliest; of nothing else, too"
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
    "each in a collective call, one in another": (0, "wait barrier save_best main", IN_STEP, f"wait {IN_STEP}"),
}


@exercise(2)
def check_waited_for(waited_for: Callable[[dict[int, list[str]]], int]) -> None:
    """Exercise 2: find the rank that blocks the other ranks."""
    for what, (expected, *stacks) in WAIT_CASES.items():
        got = waited_for({rank: frames.split() for rank, frames in enumerate(stacks)})
        hint = "look in each stack for the first name that is a collective call; one rank has none, or another one"
        expect(f"{what}: the rank that the others wait for", got, expected, hint)


SETTINGS = ("batch_size", "fanouts", "hidden", "dropout", "lr", "seed")


def check_refuses(checkpoint: str | Path, said: Sequence[str], again: Sequence[str]) -> None:
    """Exercise 3: the learner's program refuses to continue its checkpoint with other options.

    Args:
        checkpoint: of a run of two epochs. The two later runs ask for three epochs.
        said: output of the run with ``--lr 0.5``, started alone or with launch.
        again: output of the run with ``--fanouts 5,5``.
    """
    exercise(3)(lambda _: _check_refuses(Path(checkpoint), list(said), list(again)))(None)


def _check_refuses(checkpoint: Path, said: list[str], again: list[str]) -> None:
    import torch

    hint = "run it, with --checkpoint and --num_epochs 2"
    expect("the checkpoint is there", checkpoint.exists(), True, hint)
    saved = torch.load(checkpoint)
    hint = "the later runs must end before they train or save; the first must have done two epochs"
    expect("epochs in the checkpoint", len(saved.get("epochs", [])), 2, hint)
    hint = "a program that cannot continue needs both; call torch.save with what train.save writes, and more"
    expect("model and optimizer are in the checkpoint", {"model", "optimizer"} <= set(saved), True, hint)
    remembers = isinstance(saved["optimizer"], dict) and bool(saved["optimizer"].get("state"))
    expect("what the optimizer remembers is in the checkpoint", remembers, True, "optimizer.state_dict()")
    kept = _values(saved)
    wanted = {"lr": 0.01, "batch_size": 256, "hidden": 16, "dropout": 0.5, "fanouts": "10,10", "seed": 0}
    for name in SETTINGS:
        hint = "of the options, as the first run had them: vars(args)"
        expect(f"the option {name} in the checkpoint", kept.get(name, "not there"), wanted[name], hint)
    _check_refusal("the run with --lr 0.5", "lr", said)
    _check_refusal("the run with --fanouts 5,5", "fanouts", again)


def _check_refusal(run: str, option: str, said: list[str]) -> None:
    """Check the output of a run that must refuse to continue because of one option."""
    lines = [re.sub(r"^(\[[\w-]+ \d+\] |  \| )", "", line) for line in said if line.strip()]  # prefixes of launch
    expect(f"{run}: it has said something", bool(lines), True, "keep its lines: NAME = !COMMAND 2>&1")
    trained = [line for line in lines if line.startswith("epoch ")]
    expect(f"{run}: epochs that it has trained", len(trained), 0, "compare in load, before the first epoch")
    errors = [line for line in lines if line.startswith("ValueError")]
    expect(f"{run}: it has ended with a ValueError", bool(errors), True, f"its last line is {lines[-1][:80]!r}")
    named = [name for name in SETTINGS if re.search(rf"\b{name}\b", errors[-1])]
    hint = f"of all options: num_epochs and the others may be as they are; {option} alone has changed"
    expect(f"{run}: options that the error names", named, [option], hint)


def _values(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the options, which may have any place in the checkpoint."""
    found = dict(saved)
    for value in saved.values():
        if isinstance(value, dict) and "lr" in value:
            found |= value
        elif hasattr(value, "lr"):
            found |= vars(value)
    return found
