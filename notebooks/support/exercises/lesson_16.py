"""Checkers of lesson 16, real clusters."""

from collections.abc import Callable, Iterable
from typing import Any

from support.exercises import exercise, expect, expect_type, plain, rounded

# lines of broken_job.sh that must change -> hint
MISTAKES = {
    7: "Where does the second start write, and what happens to the text of the first start?",
    8: "Which processes receive the signal, and what does a program without a handler do?",
    11: "Which lines does sbatch read?",
    13: "Which processes can read the file after the job has lost its nodes?",
    15: "What does the shell do with a signal while it waits for a command in the foreground?",
}


@exercise(1)
def check_mistakes(lines: Iterable[Any]) -> None:
    """Exercise 1: the lines of a batch script that must change."""
    found = {plain(line) for line in lines}
    hint = "Replace the empty set by the numbers of the lines, counted from 1."
    expect("numbers of lines", bool(found) and all(type(line) is int for line in found), True, hint)
    wrong = sorted(found - set(MISTAKES))
    hint = "The job needs these lines as they are. Count from #!/bin/bash, line 1, with the empty lines."
    expect("lines without a mistake in your set", wrong, [], hint)
    missing = sorted(set(MISTAKES) - found)
    expect("mistakes found", len(found), len(MISTAKES), MISTAKES[missing[0]] if missing else "")


GB = 10**9
ARGUMENTS = ("graph", "node_memory", "trainers", "samplers", "server", "trainer")
# arguments -> nodes, shm, memory and clients, or None if no number of nodes is enough
SIZES: tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...] = (
    ((10 * GB, 64 * GB, 4, 0, 1 * GB, 2 * GB), (1, 10 * GB, 29 * GB, 4)),
    ((105 * GB, 128 * GB, 4, 1, 1 * GB, 6 * GB), (4, 26_250_000_000, 101_500_000_000, 32)),
    ((100, 100, 4, 0, 10, 15), (20, 5, 80, 80)),
    ((101, 100, 4, 0, 10, 15), (21, 5, 80, 84)),
    ((1000 * GB, 256 * GB, 8, 2, 1 * GB, 2 * GB), (13, 76_923_076_924, 202_846_153_848, 312)),
    ((10 * GB, 32 * GB, 4, 0, 2 * GB, 6 * GB), None),
    ((10, 100, 3, 0, 20, 20), None),
)
HINTS = {
    "nodes": "smallest number with server + trainers x (1 + samplers) x trainer + 2 x shm <= 4/5 of the node's memory",
    "shm": "graph / nodes, rounded up",
    "memory": "server + trainers x (1 + samplers) x trainer + 2 x shm",
    "clients": "nodes x trainers x (1 + samplers)",
}


@exercise(2)
def check_size_job(size_job: Callable[..., Any]) -> None:
    """Exercise 2: nodes, memory and clients of a job."""
    for values, expected in SIZES:
        counts = dict(zip(ARGUMENTS, values, strict=True))
        where = ", ".join(f"{name} {value:,}" for name, value in counts.items())
        got = size_job(**counts)
        if expected is None:
            expect(f"{where}: result", got, None, "The processes alone need four fifths of the memory or more.")
            continue
        expect_type(f"{where}: type of the result", got, "dict")
        for name, value in zip(HINTS, expected, strict=True):
            expect(f"{where}: {name}", plain(got.get(name, "missing")), value, HINTS[name])


# nodes, start, epochs, compute, size, mbit, price -> seconds and price
COSTS = (
    ((1, 20, 10, 3.0, 0, 1000, 2.0), (50.0, 50 / 1800)),
    ((2, 20, 10, 3.0, 125_000_000, 1000, 2.0), (45.0, 0.05)),
    ((4, 60, 100, 36.0, 50_000_000, 200, 3.6), (1160.0, 4.64)),
)


@exercise(3)
def check_cost(cost: Callable[..., Any]) -> None:
    """Exercise 3: seconds and price of a job."""
    for values, expected in COSTS:
        got = cost(*values)
        expect_type(f"cost{values}: type of the result", got, "tuple of 2")
        hint = "start + epochs x (compute / nodes + transfer). transfer_seconds takes bytes and Mbit/s."
        expect(f"cost{values}: seconds", rounded(got[0], 4), rounded(expected[0], 4), hint)
        hint = "All nodes are charged for the whole job. An hour has 3,600 s."
        expect(f"cost{values}: price", rounded(got[1], 6), rounded(expected[1], 6), hint)
