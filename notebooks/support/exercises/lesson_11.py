"""Checkers of lesson 11, when things break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.exercises import exercise, expect

Report = dict[str, Any]
LOST = "[10.0.0.2]:41873: Connection reset by peer"
STOPPED = "killed by signal 15 (SIGTERM)"


# what is tested: the position of the first cause, then the reports
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
    """Exercise 1: of many reports, the one to read."""
    for what, (expected, *rows) in CAUSE_CASES.items():
        got = first_cause([dict(zip(("time", "process", "message"), row, strict=True)) for row in rows])
        hint = "a lost connection and SIGTERM are consequences; of the rest, the earliest; of nothing else, too"
        expect(f"{what}: position of the first cause", got, expected, hint)


IN_STEP = "all_reduce step train main"
# what is tested: the rank that is waited for, then the calls of each rank, the innermost first
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
    """Exercise 2: the rank that the others wait for."""
    for what, (expected, *stacks) in WAIT_CASES.items():
        got = waited_for({rank: frames.split() for rank, frames in enumerate(stacks)})
        hint = "look in each stack for the first name that is a collective call; one rank has none, or another one"
        expect(f"{what}: the rank that the others wait for", got, expected, hint)


OWN = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
HINTS: Mapping[str, str] = {
    "not an address": "ipaddress.IPv4Address(...) raises a ValueError for what is none",
    "nobody": "no machine has it",
    "twice": "the second line of the two is the wrong one",
    "wrong place": "line k is for the machine that serves part k",
    "missing": "number the missing lines on from the last one",
}
# what is tested, the lines of the file, the machines' addresses, what is wrong by number of the line
ADDRESS_CASES = (
    ("all is well", ["10.0.0.1 30050", "10.0.0.2", "10.0.0.3 30050"], OWN, {}),
    ("a host name", ["10.0.0.1", "node2 30050", "10.0.0.3"], OWN, {2: "not an address"}),
    ("an address of nobody", ["10.0.0.1", "10.0.0.2", "10.0.0.33"], OWN, {3: "nobody"}),
    ("two lines swapped", ["10.0.0.2 30050", "10.0.0.1 30050"], OWN[:2], {1: "wrong place", 2: "wrong place"}),
    ("one machine twice", ["10.0.0.1", "10.0.0.1 30060", "10.0.0.3"], OWN, {2: "twice"}),
    ("too few lines", ["10.0.0.1"], OWN, {2: "missing", 3: "missing"}),
    ("several at once", ["10.0.0.256", "10.0.0.3"], OWN, {1: "not an address", 2: "wrong place", 3: "missing"}),
)


@exercise(3)
def check_wrong_lines(wrong_lines: Callable[[Sequence[str], Sequence[str]], dict[int, str]]) -> None:
    """Exercise 3: an address file against the machines that there are."""
    for what, lines, addresses, expected in ADDRESS_CASES:
        got = wrong_lines(list(lines), list(addresses))
        hint = "; ".join(dict.fromkeys(HINTS[word] for word in expected.values()))
        expect(f"{what}, {lines} for {addresses}: what is wrong", got, expected, hint)
