"""The checker of lesson 4 accepts right answers and names wrong ones."""

import torch
from solution_support import answer_tests, solutions

from support.exercises import lesson_04


def got(value: str, expected: str) -> str:
    """Return the pattern of a complaint with these elements."""
    numbers = [part.replace("[", r"\[").replace("]", r"\]") for part in (value, expected)]
    return r"  got .*{}\n  expected .*{}\n  hint: ".format(*numbers)


def in_place(rows, node_map):
    rows[node_map] = rows.clone()
    return rows


IN_ORDER, GIVEN = "[3, 1, 0, 5, 4, 2]", "[4, 2, 3, 1, 0, 5]"
ORDERS = {
    "stub": (lambda _rows, _map: None, got("None", IN_ORDER)),
    "upside down": (lambda rows, m: rows[m.argsort()].flip(0), got("[4, 2, 0, 5, 3, 1]", IN_ORDER)),
    "wrong way": (lambda rows, node_map: rows[node_map], got("[0, 5, 4, 2, 3, 1]", IN_ORDER)),
    "not changed": (lambda rows, _map: rows, got(GIVEN, IN_ORDER)),
    "sorted": (lambda rows, _map: rows.sort(dim=0).values, got("[0, 1, 3, 2, 4, 5]", IN_ORDER)),
    "in place": (in_place, got(IN_ORDER, GIVEN)),
    "raises": (lambda rows, _map: rows.no_such_thing(), "Your code raised AttributeError"),
}
RIGHT = [solutions("04").original_order, lambda rows, node_map: rows[torch.argsort(node_map)]]
test_right_order, test_wrong_order = answer_tests(lesson_04.check_original_order, RIGHT, ORDERS)
