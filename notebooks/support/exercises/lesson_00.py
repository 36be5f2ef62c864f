"""Checker of lesson 0, Start here."""

from collections.abc import Callable

from support.exercises import exercise, expect, plain

GB = 10**9
FILL_HINT = "The graph may fill half of each memory. Round up, because there are only whole machines."
MACHINE_CASES = (
    (3 * GB, 16 * GB, 1),
    (16 * GB, 16 * GB, 2),
    (16 * GB + 1, 16 * GB, 3),
    (84 * GB, 16 * GB, 11),
    (1_174 * GB, 64 * GB, 37),
)


@exercise(1)
def check_machines_needed(machines_needed: Callable[[int, int], int]) -> None:
    """Exercise 1: ``machines_needed(total, memory)`` returns a number of machines. Both arguments are in bytes."""
    for total, memory, expected in MACHINE_CASES:
        what = f"machines_needed({total:_}, {memory:_})"
        got = plain(machines_needed(total, memory))
        whole = int(got) if type(got) is float and got.is_integer() else got  # 3.0 means 3 machines, and 2.5 is wrong
        expect(what, whole, expected, FILL_HINT)
