"""The checkers of lesson 7 know right from wrong; its helpers show, wait and clean up; its pictures can be drawn."""

import re
import runpy
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from program_support import changed, run, scripts_in, written
from solution_support import assert_not_yet, solutions, verdict

from support.exercises import lesson_07
from support.lessons import attempts
from support.plots import pitfalls as plots
from tutorial_lib.errors import InputError

pytestmark = pytest.mark.usefixtures("nothing_left")

first_failure = solutions("07").first_failure
OPENMP, ARGUMENTS, GUARD, JOIN, SEEDS, FOUR = (
    written("07", f"exercise_07_{number}.py") for number in (1, 2, 3, 4, 6, 7)
)
ONE_THREAD = "    torch.set_num_threads(1)\n"
UNDER_JOIN = "with Join([model], divide_by_initial_world_size=False):"
EXERCISES = {
    "exercise_07_1.py": (OPENMP, 0, lesson_07.check_openmp),
    "exercise_07_2.py": (ARGUMENTS, 0, lesson_07.check_arguments),
    "exercise_07_3.py": (GUARD, 0, lesson_07.check_guard),
    "exercise_07_4.py": (JOIN, 2, lesson_07.check_join),
}


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return scripts_in(tmp_path)


def said_about(scripts: Path, name: str, source: str, capsys: pytest.CaptureFixture[str]) -> str:
    solution, ranks, check = EXERCISES[name]
    return verdict(capsys, check, str(run(scripts, name, source, ranks, torchrun=source == solution)))


@pytest.mark.whole_run
@pytest.mark.parametrize("name", EXERCISES)
def test_right_program(name, scripts, capsys):
    assert re.fullmatch(r"Exercise \d: correct\n", said_about(scripts, name, EXERCISES[name][0], capsys))


THREAD = (
    "    thread = threading.Thread(target=lambda: answers.put(parallel_sum()))\n    thread.start()\n    thread.join()\n"
)
OTHER_CURES = {
    "a new thread": [
        (ONE_THREAD + "    answers.put(parallel_sum())\n", THREAD),
        ("import json\n", "import json\nimport threading\n"),
    ],
    "spawn": [(ONE_THREAD, ""), ('get_context("fork")', 'get_context("spawn")')],
}


@pytest.mark.whole_run
@pytest.mark.parametrize("changes", OTHER_CURES.values(), ids=OTHER_CURES.keys())
def test_other_cures(changes, scripts, capsys):
    source = changed(OPENMP, *changes)
    assert said_about(scripts, "exercise_07_1.py", source, capsys) == "Exercise 1: correct\n"


WORK = "def work(end):\n    end.send([42, multiprocessing.get_start_method()])\n\n\n"
STARTS = "    context.Process(target=work, args=(sender,)).start()\n"
GUARDED = f'    if __name__ == "__main__":\n    {STARTS}'


def indented(source: str) -> str:
    return textwrap.indent(source, "    ")


WRONG_PROGRAMS = {
    "not cured": (1, [(ONE_THREAD, ""), ("join(8)", "join(2)")], "the child\n  got       None"),
    "a longer wait": (1, [(ONE_THREAD, ""), ("join(8)", "join(4)")], "sum of the child\n  got       None"),
    "the parent on one thread": (
        1,
        [("set_num_threads(2)", "set_num_threads(1)")],
        "threads of the parent\n  got       1",
    ),
    "no sum in the parent": (
        1,
        [('"parent": parallel_sum()', '"parent": None')],
        "sum of the parent\n  got       None",
    ),
    "threads of the parent only": (
        1,
        [(ONE_THREAD, "    torch.set_num_threads(2)\n"), ("join(8)", "join(2)")],
        "got       None",
    ),
    "divided by all": (4, [(", divide_by_initial_world_size=False", "")], r"got       \[5\.24\d+, 5\.24"),
    "no Join": (
        4,
        [(UNDER_JOIN, "if True:"), ("seconds=30", "seconds=2")],
        "ranks that have written(.|\n)*with Join|has written",
    ),
    "cut": (4, [("TARGETS[rank]", "TARGETS[rank][:3]")], "the weight of rank 0"),
    "each on its own": (4, [("fit(model,", "fit(model.module,")], "the weight of rank 0"),
    "all targets": (4, [("TARGETS[rank]", "TARGETS[0] + TARGETS[1]")], "the weight of rank 0"),
    "an open file": (2, [("(rank, path)) for", "(rank, path.open())) for")], "has written a result\n  got       False"),
    "all lines on each rank": (2, [("[rank::2]", "")], r"got       \[499500, 499500\]"),
    "the same lines": (2, [("[rank::2]", "[0::2]")], r"got       \[249500, 249500\]"),
    "halves": (2, [("[rank::2]", "[500 * rank :][:500]")], r"got       \[124750, 374750\]"),
    "forked": (2, [('get_context("spawn")', 'get_context("fork")')], r"got       \['fork', 'fork'\]"),
    "one rank": (2, [("for rank in range(2)]", "for rank in range(1)]")], "have written their sum\n  got       1"),
    "no guard": (3, [('if __name__ == "__main__":', "if True:"), ("poll(5)", "poll(1)")], "got       None"),
    "a guard that never opens": (3, [('"__main__"', '"main"')], "has written a result\n  got       False"),
    "the guard at the start only": (
        3,
        [('if __name__ == "__main__":', "if True:"), (STARTS, GUARDED), ("poll(5)", "poll(1)")],
        "got       None",
    ),
    "work below the guard": (
        3,
        [(WORK, ""), ('"__main__":\n', '"__main__":\n\n' + indented(WORK)), ("poll(5)", "poll(1)")],
        "got       None",
    ),
    "forked below the guard": (3, [('get_context("spawn")', 'get_context("fork")')], r"got       \[42, 'fork'\]"),
    "no process": (3, [(STARTS, "    work(sender)\n")], r"got       \[42, 'fork'\]"),
}


@pytest.mark.whole_run
@pytest.mark.parametrize(("number", "changes", "said"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS.keys())
def test_wrong_program(number, changes, said, scripts, capsys):
    name = f"exercise_07_{number}.py"
    assert_not_yet(said_about(scripts, name, changed(EXERCISES[name][0], *changes), capsys), said)


def test_the_weight_that_join_must_reach():
    from scripts.ddp_uneven import TARGETS

    weight = 0.0
    for step in range(max(map(len, TARGETS))):
        gradients = [2 * (weight - targets[step]) for targets in TARGETS if step < len(targets)]
        weight -= 0.25 * sum(gradients) / len(gradients)
    assert weight == lesson_07.JOINED


def test_right_watch(capsys):
    assert verdict(capsys, lesson_07.check_first_failure, first_failure) == "Exercise 5: correct\n"


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
}


@pytest.mark.parametrize(("answer", "said"), WRONG_WATCHES.values(), ids=WRONG_WATCHES.keys())
def test_wrong_watch(answer, said, capsys):
    start = time.monotonic()
    assert_not_yet(verdict(capsys, lesson_07.check_first_failure, answer), said)
    assert time.monotonic() - start < lesson_07.NAP - 1  # who still sleeps is ended


def test_an_error_of_the_answer_is_told(capsys):
    output = verdict(capsys, lesson_07.check_first_failure, lambda processes, _s: processes.oops)
    assert "Your code raised AttributeError" in output


def test_join_in_order_is_too_slow(capsys, monkeypatch):
    monkeypatch.setattr(lesson_07, "QUICK", 1.0)
    monkeypatch.setattr(lesson_07, "NAP", 1.5)
    monkeypatch.setattr(lesson_07, "WATCH_CASES", (([(1.5, 0), (0.1, 3)], (1, 3)),))

    def in_order(processes: list[Any], _seconds: float) -> tuple[int, int]:
        for process in processes:
            process.join()
        return 1, processes[1].exitcode

    assert "it came back at once\n  got       False" in verdict(capsys, lesson_07.check_first_failure, in_order)


def _late(processes: list[Any], _seconds: float) -> None:
    time.sleep(1.2)
    for process in processes:
        process.terminate()
        process.join()
    raise TimeoutError


def _sleepers_left(_processes: list[Any], _seconds: float) -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda processes, _seconds: first_failure(processes, 30.0), "what was raised\n  got       None"),
        (_late, "it came at once\n  got       False"),
        (_sleepers_left, r"still running\n  got       \[0, 1\]"),
    ],
)
def test_the_limit_is_looked_at(answer, said, capsys, monkeypatch):
    monkeypatch.setattr(lesson_07, "QUICK", 1.0)
    monkeypatch.setattr(lesson_07, "NAP", 1.5)
    monkeypatch.setattr(lesson_07, "WATCH_CASES", ())
    assert re.search(said, verdict(capsys, lesson_07.check_first_failure, answer))


def what_was_drawn(scripts: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the program of exercise 6 once for each rank; it needs no other rank."""
    path = scripts / "exercise_07_6.py"
    path.write_text(source)
    with torch.random.fork_rng():
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            runpy.run_path(str(path), run_name="__main__")
    return str(path)


def test_right_seeds(scripts, capsys, monkeypatch):
    program = what_was_drawn(scripts, SEEDS, monkeypatch)
    assert verdict(capsys, lesson_07.check_seeds, program) == "Exercise 6: correct\n"


SHARED = "torch.Generator().manual_seed(1000 * seed + epoch)"
OWN = "torch.manual_seed(2 * seed + rank)"
WRONG_SEEDS = {
    "one seed": ([(OWN, "torch.manual_seed(seed)")], "epoch 0: both ranks keep the same values\n  got       True"),
    "no generator of its own": ([(", generator=shared", "")], "epoch 0: nodes of both ranks, sorted"),
    "the rank in the shared seed": (
        [(SHARED, SHARED.replace("epoch", "epoch + rank"))],
        "epoch 0: nodes of both ranks",
    ),
    "no epoch": ([("1000 * seed + epoch", "seed")], "rank 0, nodes: epoch 1 repeats epoch 0"),
    "seeded in each epoch": (
        [("        shared =", f"        {OWN}\n        shared =")],
        "kept: epoch 1 repeats epoch 0",
    ),
    "chance": ([(OWN, "torch.seed()")], "kept: a second run with seed 7 repeats the first\n  got       False"),
    "the rank alone": ([(OWN, "torch.manual_seed(rank)")], "kept: seed 8 repeats seed 7"),
    "the epoch alone": ([("1000 * seed + epoch", "epoch")], "nodes: seed 8 repeats seed 7"),
}


@pytest.mark.parametrize(("changes", "said"), WRONG_SEEDS.values(), ids=WRONG_SEEDS.keys())
def test_wrong_seeds(changes, said, scripts, capsys, monkeypatch):
    program = what_was_drawn(scripts, changed(SEEDS, *changes), monkeypatch)
    assert_not_yet(verdict(capsys, lesson_07.check_seeds, program), said)


def said_about_four(scripts: Path, source: str, ranks: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the program of exercise 7 as the lesson does, while the port that it is given is held."""
    with socket.create_server(("127.0.0.1", 0)) as other_job:
        program = run(scripts, "exercise_07_7.py", source, ranks, str(other_job.getsockname()[1]))
    return verdict(capsys, lesson_07.check_four, str(program))


ASKS = '    print("a GPU is here:", torch.cuda.is_available(), flush=True)\n'
FORKS = [(ASKS, ""), ('get_context("spawn")', 'get_context("fork")')]
PARENT = FOUR[FOUR.index('if __name__ == "__main__":') :]
OWN_PORT = PARENT[PARENT.index("    with ") : PARENT.index(ASKS)]
SUM_OF_PARTS = "        dist.all_reduce(part)\n"
OTHER_CURES_OF_FOUR = {
    "the solution": (0, []),
    "a fork, and nothing asked before it": (0, FORKS),
    "one sum, after steps that differ": (
        0,
        [
            *FORKS,
            ("BATCHES[:, rank::RANKS]", "BATCHES[rank::RANKS]"),
            (SUM_OF_PARTS, ""),
            ("    count =", "    dist.all_reduce(total)\n    count ="),
        ],
    ),
    "torchrun": (
        2,
        [
            (PARENT, 'if __name__ == "__main__":\n    rank_main(int(os.environ["RANK"]), None)\n'),
            ('f"tcp://127.0.0.1:{port}"', '"env://"'),
            ("    torch.set_num_threads(max(1, CPUS // RANKS))\n", ""),
        ],
    ),
}


@pytest.mark.whole_run
@pytest.mark.parametrize(("ranks", "changes"), OTHER_CURES_OF_FOUR.values(), ids=OTHER_CURES_OF_FOUR.keys())
def test_cures_of_four(ranks, changes, scripts, capsys):
    assert said_about_four(scripts, changed(FOUR, *changes), ranks, capsys) == "Exercise 7: correct\n"


NO_GROUP = r"rank \d: ranks in its group\n  got       None"
STOPPED = r"rank \d: the error that ended it\n(.|\n)*as many: divide each batch"
SOON = ("seconds=10", "seconds=4")
WRONG_FOUR = {
    "asks, then forks": (FORKS[1:], "rank 0 is refused the GPU because of a fork\n  got       True"),
    "no rank asks": ([*FORKS, ('"cuda": ask_cuda(), ', "")], "rank 0 has asked for the GPU\n  got       False"),
    "more threads than CPUs": (
        [*FORKS, ("max(1, CPUS // RANKS)", "CPUS + 1")],
        r"rank 0: its threads, (.|\n)*hint: from 1 to max",
    ),
    "a share of nothing": (
        [*FORKS, ("max(1, CPUS // RANKS)", "0")],
        rf"{NO_GROUP}(.|\n)*it ended with RuntimeError: set_num_threads expects a positive integer",
    ),
    "the port that it was given": (
        [*FORKS, (OWN_PORT, "    port = int(sys.argv[1])\n"), ("import socket\n", "import sys\n")],
        rf"{NO_GROUP}(.|\n)*one port for both ranks(.|\n)*DistNetworkError: The server socket has failed to listen",
    ),
    "a port for each rank": ([*FORKS, SOON, ("{port}", "{port + rank}")], NO_GROUP),
    "one rank": ([*FORKS, ("SOON = 2,", "SOON = 1,")], "rank 0: ranks in its group\n  got       1"),
    "batches divided": ([*FORKS, SOON, ("BATCHES[:, rank::RANKS]", "BATCHES[rank::RANKS]")], STOPPED),
    "a collective of rank 0": (
        [*FORKS, SOON, ("    dist.all_reduce(count)", "    if rank == 0:\n        dist.all_reduce(count)")],
        STOPPED,
    ),
    "only rank 0 writes": (
        [*FORKS, ("    Path(__file__)", "    if rank == 0:\n        Path(__file__)")],
        r"ranks that have written what they found\n  got       \['rank 0'\]",
    ),
    "cut": (
        [*FORKS, ("BATCHES[:, rank::RANKS]", "BATCHES[rank:4:RANKS]")],
        r"numbers that the ranks have added, sorted\n  got       .*8\.0\]\n",
    ),
    "all on each rank": ([*FORKS, ("BATCHES[:, rank::RANKS]", "BATCHES")], r"sorted\n  got       \[1\.0, 1\.0, 2\.0"),
    "parts not summed": ([*FORKS, (SUM_OF_PARTS, "")], r"rank 0: the total\n  got       25\.0"),
    "counts not summed": ([*FORKS, ("    dist.all_reduce(count)\n", "")], r"rank 0: the count\n  got       5\.0"),
}


@pytest.mark.whole_run
@pytest.mark.parametrize(("changes", "said"), WRONG_FOUR.values(), ids=WRONG_FOUR.keys())
def test_wrong_four(changes, said, scripts, capsys):
    assert_not_yet(said_about_four(scripts, changed(FOUR, *changes), 0, capsys), said)


# ---- helpers of the lesson


def test_plain_leaves_out_what_differs():
    frame = '  File "/a/b/torch/autograd/__init__.py", line 266 in backward'
    stack = "Current thread 0x00007f9b (most recent call first):\n" + frame
    assert attempts.plain(stack) == (
        'Current thread (most recent call first):\n  File "autograd/__init__.py" in backward'
    )
    assert attempts.plain('  File "/var/x/ipykernel_4/28977.py", line 9 in f') == '  File "a cell" in f'
    assert attempts.plain("closed by peer [127.0.0.1]:4711") == "closed by peer [127.0.0.1]:PORT"
    bind = "The server socket has failed to bind to {}:99 (errno: 98 - in use). "
    assert attempts.plain("Failed. " + bind.format("[::]") + bind.format("0.0.0.0")) == (
        "Failed. The server socket has failed to bind to 0.0.0.0:PORT (errno: 98 - in use). "
    )
    assert attempts.plain("<function f at 0x7fab12>") == "<function f>"


def test_attempt_prints_result_error_and_remedy(capsys):
    def refuse() -> None:
        raise InputError("no", "do this")

    attempts.attempt(max, 1, 2)
    attempts.attempt(int, "x")
    attempts.attempt(refuse)
    assert capsys.readouterr().out.splitlines() == [
        "returned 2",
        "ValueError: invalid literal for int() with base 10: 'x'",
        "InputError: no",
        "what to do: do this",
    ]


def test_stderr_of_children_is_collected():
    with attempts.stderr_of_children() as lines:
        subprocess.run([sys.executable, "-c", "import sys; print('to', 'me', file=sys.stderr)"], check=True)
    assert lines == ["to me"]


@pytest.mark.whole_run
def test_cuda_marks_a_fork(scripts):
    done = subprocess.run(
        [sys.executable, str(scripts / "ddp_cuda_fork.py")], capture_output=True, text=True, timeout=100, check=True
    )
    refused = [line[:30].strip() for line in done.stdout.splitlines() if "Cannot re-initialize CUDA" in line]
    assert [name for name in refused if "device_count" not in name] == [  # that asks NVML first, where there is one
        "torch.cuda.is_available()",
        'torch.zeros(1, device="cuda")',
    ]


def test_pictures():
    assert [ax.get_title() for ax in plots.what_a_fork_copies().axes][1] == "after the fork: the child"
    texts = [text.get_text() for text in plots.steps_of_ranks([1, 3]).axes[0].texts]
    assert texts == ["gradient", "gone", "gone", "gradient", "waits", "never"]
