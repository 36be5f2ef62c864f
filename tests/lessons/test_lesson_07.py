"""The checkers of lesson 7 know right from wrong."""

import re
import runpy
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from program_support import changed, run, written
from solution_support import answer_tests, solutions, verdict

from support.exercises import lesson_07

pytestmark = pytest.mark.usefixtures("nothing_left")

first_failure = solutions("07").first_failure
SOURCES = {number: written("07", f"exercise_07_{number}.py") for number in (1, 2, 3, 4, 6, 7)}
CHECKS = {
    1: lesson_07.check_openmp,
    2: lesson_07.check_arguments,
    3: lesson_07.check_guard,
    4: lesson_07.check_join,
    6: lesson_07.check_seeds,
    7: lesson_07.check_four,
}
Changes = list[tuple[str, str]]


@pytest.fixture
def ran(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, Changes]], tuple[int, str]]:
    """Run the solution of an exercise with some of its text changed, as the lesson does."""

    def run_changed(answer: tuple[int, Changes]) -> tuple[int, str]:
        number, changes = answer
        path, source = scripts / f"exercise_07_{number}.py", changed(SOURCES[number], *changes)
        ranks = 2 if number == 4 or TORCHRUN in changes else 0
        if number == 6:  # one rank after the other: none needs the others
            path.write_text(source)
            with torch.random.fork_rng():
                for rank in ("0", "1"):
                    monkeypatch.setenv("RANK", rank)
                    runpy.run_path(str(path), run_name="__main__")
        else:
            with socket.create_server(("127.0.0.1", 0)) as other_job:  # holds the port that exercise 7 is given
                run(scripts, path.name, source, ranks, str(other_job.getsockname()[1]))
        return number, str(path)

    return run_changed


def check(number: int, program: str) -> None:
    CHECKS[number](program)


ONE_THREAD = "    torch.set_num_threads(1)\n"
THREAD = (
    "    thread = threading.Thread(target=lambda: answers.put(parallel_sum()))\n    thread.start()\n    thread.join()\n"
)
ASKS = '    print("a GPU is here:", torch.cuda.is_available(), flush=True)\n'
FORKS = [(ASKS, ""), ('get_context("spawn")', 'get_context("fork")')]
PARENT = SOURCES[7][SOURCES[7].index('if __name__ == "__main__":') :]
OWN_PORT = PARENT[PARENT.index("    with ") : PARENT.index(ASKS)]
SUM_OF_PARTS = "        dist.all_reduce(part)\n"
TORCHRUN = (PARENT, 'if __name__ == "__main__":\n    rank_main(int(os.environ["RANK"]), None)\n')
RIGHT = {
    **{f"the solution of exercise {number}": (number, []) for number in SOURCES},
    "a new thread": (
        1,
        [
            (ONE_THREAD + "    answers.put(parallel_sum())\n", THREAD),
            ("import json\n", "import json\nimport threading\n"),
        ],
    ),
    "spawn": (1, [(ONE_THREAD, ""), ('get_context("fork")', 'get_context("spawn")')]),
    "a fork, and nothing asked before it": (7, FORKS),
    "one sum, after steps that differ": (
        7,
        [
            *FORKS,
            ("BATCHES[:, rank::RANKS]", "BATCHES[rank::RANKS]"),
            (SUM_OF_PARTS, ""),
            ("    count =", "    dist.all_reduce(total)\n    count ="),
        ],
    ),
    "torchrun": (
        7,
        [
            TORCHRUN,
            ('f"tcp://127.0.0.1:{port}"', '"env://"'),
            ("    torch.set_num_threads(max(1, CPUS // RANKS))\n", ""),
        ],
    ),
}

UNDER_JOIN = "with Join([model], divide_by_initial_world_size=False):"
SHARED = "torch.Generator().manual_seed(1000 * seed + epoch)"
OWN = "torch.manual_seed(2 * seed + rank)"
NO_GROUP = r"rank \d: ranks in its group\n  got       None"
STOPPED = r"rank \d: the error that ended it\n(.|\n)*as many: divide each batch"
WRONG = {
    "not cured": ((1, [(ONE_THREAD, ""), ("join(8)", "join(2)")]), "the child\n  got       None"),
    "the parent on one thread": (
        (1, [("set_num_threads(2)", "set_num_threads(1)")]),
        "threads of the parent\n  got       1",
    ),
    "an open file": (
        (2, [("(rank, path)) for", "(rank, path.open())) for")]),
        "has written a result\n  got       False",
    ),
    "all lines on each rank": ((2, [("[rank::2]", "")]), r"got       \[499500, 499500\]"),
    "the same lines": ((2, [("[rank::2]", "[0::2]")]), r"got       \[249500, 249500\]"),
    "forked": ((2, [('get_context("spawn")', 'get_context("fork")')]), r"got       \['fork', 'fork'\]"),
    "one rank": ((2, [("for rank in range(2)]", "for rank in range(1)]")]), "have written their sum\n  got       1"),
    "no guard": ((3, [('if __name__ == "__main__":', "if True:"), ("poll(5)", "poll(1)")]), "got       None"),
    "a guard that never opens": ((3, [('"__main__"', '"main"')]), "has written a result\n  got       False"),
    "forked below the guard": ((3, [('get_context("spawn")', 'get_context("fork")')]), r"got       \[42, 'fork'\]"),
    "divided by all": ((4, [(", divide_by_initial_world_size=False", "")]), r"got       \[5\.24\d+, 5\.24"),
    "no Join": (
        (4, [(UNDER_JOIN, "if True:"), ("seconds=30", "seconds=2")]),
        "ranks that have written(.|\n)*with Join|has written",
    ),
    "cut": ((4, [("TARGETS[rank]", "TARGETS[rank][:3]")]), "the weight of rank 0"),
    "each on its own": ((4, [("fit(model,", "fit(model.module,")]), "the weight of rank 0"),
    "one seed": ((6, [(OWN, "torch.manual_seed(seed)")]), "epoch 0: both ranks keep the same values\n  got       True"),
    "no generator of its own": ((6, [(", generator=shared", "")]), "epoch 0: nodes of both ranks, sorted"),
    "no epoch": ((6, [("1000 * seed + epoch", "seed")]), "rank 0, nodes: epoch 1 repeats epoch 0"),
    "seeded in each epoch": (
        (6, [("        shared =", f"        {OWN}\n        shared =")]),
        "kept: epoch 1 repeats epoch 0",
    ),
    "chance": ((6, [(OWN, "torch.seed()")]), "kept: a second run with seed 7 repeats the first\n  got       False"),
    "the rank alone": ((6, [(OWN, "torch.manual_seed(rank)")]), "kept: seed 8 repeats seed 7"),
    "the epoch alone": ((6, [("1000 * seed + epoch", "epoch")]), "nodes: seed 8 repeats seed 7"),
    "asks, then forks": ((7, FORKS[1:]), "rank 0 is refused the GPU because of a fork\n  got       True"),
    "no rank asks": (
        (7, [*FORKS, ('"cuda": ask_cuda(), ', "")]),
        "rank 0 has asked for the GPU\n  got       False",
    ),
    "more threads than CPUs": (
        (7, [*FORKS, ("max(1, CPUS // RANKS)", "CPUS + 1")]),
        r"rank 0: its threads, (.|\n)*hint: from 1 to max",
    ),
    "a share of nothing": (
        (7, [*FORKS, ("max(1, CPUS // RANKS)", "0")]),
        rf"{NO_GROUP}(.|\n)*it ended with RuntimeError: set_num_threads expects a positive integer",
    ),
    "the port that it was given": (
        (7, [*FORKS, (OWN_PORT, "    port = int(sys.argv[1])\n"), ("import socket\n", "import sys\n")]),
        rf"{NO_GROUP}(.|\n)*one port for both ranks(.|\n)*DistNetworkError: The server socket has failed to listen",
    ),
    "one rank of two": ((7, [*FORKS, ("SOON = 2,", "SOON = 1,")]), "rank 0: ranks in its group\n  got       1"),
    "batches divided": (
        (7, [*FORKS, ("seconds=10", "seconds=4"), ("BATCHES[:, rank::RANKS]", "BATCHES[rank::RANKS]")]),
        STOPPED,
    ),
    "only rank 0 writes": (
        (7, [*FORKS, ("    Path(__file__)", "    if rank == 0:\n        Path(__file__)")]),
        r"ranks that have written what they found\n  got       \['rank 0'\]",
    ),
    "some numbers": (
        (7, [*FORKS, ("BATCHES[:, rank::RANKS]", "BATCHES[rank:4:RANKS]")]),
        r"numbers that the ranks have added, sorted\n  got       .*8\.0\]\n",
    ),
    "parts not summed": ((7, [*FORKS, (SUM_OF_PARTS, "")]), r"rank 0: the total\n  got       25\.0"),
    "counts not summed": (
        (7, [*FORKS, ("    dist.all_reduce(count)\n", "")]),
        r"rank 0: the count\n  got       5\.0",
    ),
}
test_right_program, test_wrong_program = map(pytest.mark.whole_run, answer_tests(check, RIGHT, WRONG, "ran"))


def left_running(processes: list[Any], seconds: float) -> tuple[int, int] | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number, process in enumerate(processes):
            if process.exitcode:
                return number, process.exitcode
    return None


def code_only(processes: list[Any], seconds: float) -> Any:
    found = first_failure(processes, seconds)
    return found and found[1]


def positive(processes: list[Any], seconds: float) -> Any:
    found = first_failure(processes, seconds)
    return found and (found[0], abs(found[1]))


WRONG_WATCHES = {
    "stub": (lambda *_: None, r"got       None\n  expected  \(1, 3\)"),
    "leaves the others": (left_running, r"still running\n  got       \[2\]\n  expected  \[\](.|\n)*terminate"),
    "only the code": (code_only, r"got       3\n  expected  \(1, 3\)"),
    "no signals": (positive, r"got       \(0, 9\)\n  expected  \(0, -9\)"),
    "raises": (lambda processes, _seconds: processes.oops, "Your code raised AttributeError"),
}
test_right_watch, test_wrong_watch = answer_tests(lesson_07.check_first_failure, [first_failure], WRONG_WATCHES)


def in_order(processes: list[Any], _seconds: float) -> tuple[int, int]:
    for process in processes:
        process.join()
    return 1, processes[1].exitcode


def late(processes: list[Any], _seconds: float) -> None:
    time.sleep(1.2)
    for process in processes:
        process.terminate()
        process.join()
    raise TimeoutError


def sleepers_left(_processes: list[Any], _seconds: float) -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("answer", "cases", "said"),
    [
        (in_order, (([(1.5, 0), (0.1, 3)], (1, 3)),), "it came back at once\n  got       False"),
        (lambda processes, _seconds: first_failure(processes, 30.0), (), "what was raised\n  got       None"),
        (late, (), "it came at once\n  got       False"),
        (sleepers_left, (), r"still running\n  got       \[0, 1\]"),
    ],
)
def test_the_limit_is_looked_at(answer, cases, said, capsys, monkeypatch):
    for name, value in {"QUICK": 1.0, "NAP": 1.5, "WATCH_CASES": cases}.items():
        monkeypatch.setattr(lesson_07, name, value)
    assert re.search(said, verdict(capsys, lesson_07.check_first_failure, answer))
