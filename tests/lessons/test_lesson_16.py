"""The checkers of lesson 16 distinguish right and wrong answers."""

from collections.abc import Callable
from typing import Any

import torch
from solution_support import NOTEBOOKS, answer_tests, solutions

from support.exercises import lesson_16

size_job, cost = solutions("16").size_job, solutions("16").cost
MISTAKES = set(lesson_16.MISTAKES)
RIGHT_LINES = [MISTAKES, sorted(MISTAKES), torch.tensor(sorted(MISTAKES))]
WRONG_LINES = {
    "stub": (set(), "numbers of lines"),
    "text": ({"7"}, "numbers of lines"),
    "counted from 0": ({line - 1 for line in MISTAKES}, "lines without a mistake"),
    "too many": (MISTAKES | {5}, r"lines without a mistake.*\n +got +\[5\]"),
    "too few": (MISTAKES - {8}, "mistakes found.*\n +got +4\n +expected +5\n.*receive the signal"),
}
test_right_lines, test_wrong_lines = answer_tests(lesson_16.check_mistakes, RIGHT_LINES, WRONG_LINES)


def test_mistakes_are_in_the_script():
    lines = (NOTEBOOKS / "scripts" / "broken_job.sh").read_text().splitlines()
    words = {7: "night.log", 8: "USR1", 11: "#SBATCH", 13: "/dev/shm", 15: "srun"}
    assert {line: words[line] in lines[line - 1] for line in MISTAKES} == dict.fromkeys(MISTAKES, True)


def _with(**changes: Callable[[dict[str, int], dict[str, int]], int]) -> Callable[..., Any]:
    """Return the solution with some numbers replaced by functions of the question and the right answer."""

    def wrong(**asked: int) -> Any:
        right = size_job(**asked)
        return right and right | {name: change(asked, right) for name, change in changes.items()}

    return wrong


WRONG_SIZES = {
    "stub": (lambda **_: None, "type of the result"),
    "a tuple": (lambda **asked: tuple((size_job(**asked) or {}).values()), "type of the result"),
    "all of the memory": (
        lambda **asked: size_job(**{**asked, "node_memory": asked["node_memory"] * 5 // 4}),
        r"graph 105,000,000,000.*nodes",
    ),
    "the part once": (lambda **asked: size_job(**{**asked, "graph": asked["graph"] // 2}), "nodes|shm"),
    "the server forgotten": (lambda **asked: size_job(**{**asked, "server": 0}), "nodes|memory"),
    "samplers forgotten": (_with(clients=lambda a, r: r["nodes"] * a["trainers"]), "clients"),
    "clients of one node": (_with(clients=lambda a, _: a["trainers"] * (1 + a["samplers"])), "clients"),
    "rounded down": (_with(shm=lambda a, r: a["graph"] // r["nodes"]), "shm"),
    "never too small": (
        lambda **asked: size_job(**asked) or dict.fromkeys(("nodes", "shm", "memory", "clients"), 1),
        "trainer 6,000,000,000: result\n",
    ),
}


def as_tensors(**asked: int) -> Any:
    return (found := size_job(**asked)) and {name: torch.tensor(value) for name, value in found.items()}


test_right_sizes, test_wrong_sizes = answer_tests(lesson_16.check_size_job, [size_job, as_tensors], WRONG_SIZES)


def _cost(seconds: Callable[..., float], price: Callable[..., float]) -> Callable[..., Any]:
    """Return a wrong ``cost`` that changes the seconds or the price of the solution."""
    return lambda *asked: (seconds(*asked), price(*asked))


WRONG_COSTS = {
    "stub": (lambda *_: None, "type of the result"),
    "only the seconds": (lambda *asked: cost(*asked)[0], "type of the result"),
    "the start forgotten": (lambda n, _, *rest: cost(n, 0, *rest), "seconds"),
    "bytes as bits": (lambda n, s, e, c, size, *rest: cost(n, s, e, c, size / 8, *rest), "seconds"),
    "computation not divided": (lambda n, s, e, c, *rest: cost(n, s, e, c * n, *rest), "seconds"),
    "transfer divided": (lambda n, s, e, c, size, *rest: cost(n, s, e, c, size / n, *rest), "seconds"),
    "price of one node": (_cost(lambda *a: cost(*a)[0], lambda *a: cost(*a)[1] / a[0]), "price"),
    "price per second": (_cost(lambda *a: cost(*a)[0], lambda *a: cost(*a)[1] * 3600), "price"),
}
test_right_cost, test_wrong_cost = answer_tests(lesson_16.check_cost, [cost], WRONG_COSTS)
