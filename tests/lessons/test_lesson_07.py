"""The checkers of lesson 7 know right from wrong; its helpers show, wait and clean up; its pictures can be drawn."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from solution_support import lesson_code, solutions, verdict

from support.exercises import lesson_07
from support.lessons import attempts
from support.plots import pitfalls as plots
from tutorial_lib.errors import InputError
from tutorial_lib.processes import fork

pytestmark = pytest.mark.usefixtures("nothing_left")


ANSWERS = solutions("07")
IN_CELLS = lesson_code("07", "die", "member", "plain_pair", "names_of", "keep_batches", "still_named")
epoch_share = ANSWERS.epoch_share
joined_gradients = ANSWERS.joined_gradients
first_failure = ANSWERS.first_failure


def left_running(processes: list[Any], seconds: float) -> tuple[int, int] | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number, process in enumerate(processes):
            if process.exitcode:
                return number, process.exitcode
    return None


CHECKS = (lesson_07.check_epoch_share, lesson_07.check_joined_gradients, lesson_07.check_first_failure)


@pytest.mark.parametrize(
    ("check", "answer"),
    zip(CHECKS, (epoch_share, joined_gradients, first_failure), strict=True),
    ids=lambda f: f.__name__,
)
def test_right_answer(check: Callable[[Any], None], answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


def _own_seed(count: int, rank: int, world_size: int, epoch: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(7 * epoch + rank))[rank::world_size]


def _global_seed(count: int, rank: int, world_size: int, epoch: int) -> torch.Tensor:
    torch.manual_seed(epoch)
    return torch.randperm(count)[rank::world_size]


CALLS = itertools.count()


def _other_each_time(count: int, _rank: int, world_size: int, _epoch: int) -> torch.Tensor:
    """Whole shares, but asked again it draws anew."""
    number = next(CALLS)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(number - _rank))
    return order[_rank::world_size]


WRONG = {
    "new each time": (0, _other_each_time, "asked again, epoch 1 is the same\n  got       False"),
    "turned": (0, lambda n, r, w, e: torch.arange(n).roll(e)[r::w], "stays together in epoch 1\n  got       True"),
    "reversed": (0, lambda n, r, w, e: (torch.arange(n).flip(0) if e else torch.arange(n))[r::w], "stays together"),
    "stub": (0, lambda *_: None, "got       'NoneType'\n  expected  'torch.int64 tensor'"),
    "own seed": (0, _own_seed, r"together, sorted\n  got       tensor \(40,\)(.|\n)*hint: every rank must shuffle"),
    "drops the rest": (0, lambda n, r, w, e: epoch_share(n // w * w, r, w, e), r"41 ids.*\n  got       tensor \(40,\)"),
    "no epoch": (0, lambda n, r, w, _e: epoch_share(n, r, w, 0), "epoch 1 repeats epoch 0\n  got       True"),
    "global generator": (0, _global_seed, "global generator is as before\n  got       False"),
    "uneven": (
        0,
        lambda n, r, w, e: epoch_share(n, 0, 1, e)[r * (n // w) : None if r == w - 1 else (r + 1) * (n // w)],
        r"sizes \[12, 12, 12, 14\] differ by at most one\n  got       False",
    ),
    "a list": (0, lambda *a: epoch_share(*a).tolist(), "got       'list'"),
    "second stub": (1, lambda *_: None, r"got       None\n  expected  \[4.0, 2.0\]"),
    "shortest": (1, lambda g, _i: [sum(s) / len(s) for s in zip(*g, strict=False)], r"got       \[4.0\]"),
    "never initial": (1, lambda g, _i: joined_gradients(g, False), r"got       \[4.0, 4.0\]\n  expected  \[4.0, 2.0\]"),
    "always initial": (
        1,
        lambda g, _i: joined_gradients(g, True),
        "hint: divide by the number of the ranks that still",
    ),
    "third stub": (2, lambda *_: None, r"got       None\n  expected  \(1, 3\)"),
    "leaves the others": (2, left_running, r"still running\n  got       \[2\]\n  expected  \[\](.|\n)*terminate"),
    "raises": (2, lambda processes, _s: processes.oops, "Your code raised AttributeError"),
}


@pytest.mark.parametrize(("number", "answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_answer(number: int, answer: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = verdict(capsys, CHECKS[number], answer)
    assert output.startswith(f"Exercise {number + 1}: not yet.")
    assert re.search(said, output), output


def test_join_in_order_is_too_slow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_07, "QUICK", 1.0)
    monkeypatch.setattr(lesson_07, "NAP", 1.5)
    monkeypatch.setattr(lesson_07, "WATCH_CASES", (([(1.5, 0), (0.1, 3)], (1, 3)),))

    def in_order(processes: list[Any], _seconds: float) -> tuple[int, int]:
        for process in processes:
            process.join()
        return 1, processes[1].exitcode

    assert "it came back at once\n  got       False" in verdict(capsys, CHECKS[2], in_order)


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
def test_the_limit_is_looked_at(
    answer: Any, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson_07, "QUICK", 1.0)
    monkeypatch.setattr(lesson_07, "NAP", 1.5)
    monkeypatch.setattr(lesson_07, "WATCH_CASES", ())
    output = verdict(capsys, CHECKS[2], answer)
    assert re.search(said, output), output


def test_global_generator_is_given_back() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    lesson_07.check_epoch_share(_global_seed)
    assert torch.equal(before, torch.get_rng_state())


# ---- helpers of the lesson


def test_plain_leaves_out_what_differs() -> None:
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


def test_attempt_prints_result_error_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_stderr_of_children_is_collected() -> None:
    with attempts.stderr_of_children() as lines:
        subprocess.run([sys.executable, "-c", "import sys; print('to', 'me', file=sys.stderr)"], check=True)
    assert lines == ["to me"]


def test_spawn_by_torch_says_only_exit_code_1() -> None:
    """In a fresh interpreter, with which the tracker of multiprocessing ends."""
    code = (
        "from support.lessons import pitfalls\ndef mine(rank): ...\n"
        "error, lines = pitfalls.spawn_by_torch(mine)\n"
        "print(error)\nprint([line for line in lines if line.startswith('AttributeError')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    error, line = done.stdout.splitlines()
    assert error == "ProcessExitedException: process 0 terminated with exit code 1"
    assert "Can't get attribute 'mine'" in line


def test_scripts_end_or_are_stopped() -> None:
    assert attempts.run_script("print('a')\nraise SystemExit(4)", 20) == (4, ["a"])
    slow = "import subprocess, time\nprint('b', flush=True)\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)"
    assert attempts.run_script(slow, 1.0) == (None, ["b"])  # nothing_left looks for the sleeping program


def test_cuda_marks_a_fork() -> None:
    """In a fresh interpreter: this one may have asked for CUDA."""
    code = (
        "from support.lessons import pitfalls; import sys; assert 'dgl' not in sys.modules\n"
        "for row in pitfalls.cuda_after_each(0, 1): print(row[0], '|', 'forked subprocess' in row[2])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    marked = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert [name for name, mark in marked.items() if mark == "True"] == [
        "torch.cuda.device_count(), no NVML",
        "torch.cuda.is_available()",
        "torch.cuda.get_device_name(0)",
        'torch.zeros(1, device="cuda")',
    ]
    assert len(marked) == 9


@pytest.mark.parametrize("how", ["exits", "killed", "late"])
def test_peer_of_a_dead_rank_hears_of_a_connection(how: str) -> None:
    ((told, codes),) = fork(IN_CELLS.plain_pair, 1, (how,), threads=1, timeout=60)
    assert codes == [0, {"exits": 3, "killed": -9, "late": 0}[how]]
    assert ("Timed out waiting 1000ms" if how == "late" else "Connection closed by peer [127.0.0.1]:PORT") in told


def test_names_in_shared_memory_go() -> None:
    (seen,) = fork(IN_CELLS.keep_batches, 1, ("file_system", 40), threads=1, timeout=60)
    _batches, _files, names = seen
    assert len(names) > 100
    assert IN_CELLS.still_named(names) == []
    (text,) = fork(IN_CELLS.keep_batches, 1, ("file_descriptor", 40), threads=1, timeout=60)
    assert "Too many open files" in text


def test_pictures() -> None:
    assert [ax.get_title() for ax in plots.what_a_fork_copies().axes][1] == "after the fork: the child"
    texts = [text.get_text() for text in plots.steps_of_ranks([1, 3]).axes[0].texts]
    assert texts == ["gradient", "gone", "gone", "gradient", "waits", "never"]
    shown = {text.get_text() for text in plots.visits({"a": [[[0, 1], [1]]]}, 3).axes[0].texts}
    assert shown == {"0", "both", "–"}
