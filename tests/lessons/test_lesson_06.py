"""The checkers of lesson 6 know right from wrong; its programs agree with one process and with DGL; its pictures."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from commands import wait_until
from program_support import changed, run, scripts_in, written
from solution_support import assert_not_yet, solutions, verdict
from torch import Tensor

from support.exercises import lesson_06
from support.plots import multi_gpu as plots
from tutorial_lib.sampling.nodes import sampling_threads

ANSWERS = solutions("06")
epoch_share, fix_openmp = ANSWERS.epoch_share, ANSWERS.fix_openmp
MACRO = written("06", "exercise_06_2.py")


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    scripts = scripts_in(tmp_path)
    labels = torch.tensor([0] * 20 + [1] * 7 + [3] * 3 + [4])  # nothing is of class 2
    predictions = labels.clone()
    predictions[::3] = 0
    torch.save((predictions, labels), scripts / "out" / "answers.pt")
    return scripts


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (lesson_06.check_epoch_share, epoch_share),
        (lesson_06.check_fix_openmp, fix_openmp),
    ],
)
def test_right_answer(check, answer, capsys):
    torch.ones(2_000_000).sum()  # a learner's kernel has used OpenMP, too
    assert re.fullmatch(r"Exercise \d: correct\n", verdict(capsys, check, answer))


def _own_seed(count: int, rank: int, world_size: int, epoch: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(7 * epoch + rank))[rank::world_size]


def _global_seed(count: int, rank: int, world_size: int, epoch: int) -> torch.Tensor:
    torch.manual_seed(epoch)
    return torch.randperm(count)[rank::world_size]


def _with_a_memory() -> Callable[[int, int, int, int], Tensor]:
    """Each call for the same share draws on."""
    calls: Counter[tuple[int, int, int, int]] = Counter()

    def share(*asked: int) -> Tensor:
        calls[asked] += 1
        return epoch_share(*asked[:3], asked[3] + 10 * calls[asked])

    return share


WRONG_SHARES = {
    "with a memory": (_with_a_memory(), "asked again, epoch 1 is the same\n  got       False"),
    "turned": (lambda n, r, w, e: torch.arange(n).roll(e)[r::w], "stays together in epoch 1\n  got       True"),
    "reversed": (lambda n, r, w, e: (torch.arange(n).flip(0) if e else torch.arange(n))[r::w], "stays together"),
    "stub": (lambda *_: None, "got       'NoneType'\n  expected  'torch.int64 tensor'"),
    "own seed": (_own_seed, r"together, sorted\n  got       tensor \(40,\)(.|\n)*hint: every rank must shuffle"),
    "drops the rest": (lambda n, r, w, e: epoch_share(n // w * w, r, w, e), r"41 ids.*\n  got       tensor \(40,\)"),
    "no epoch": (lambda n, r, w, _e: epoch_share(n, r, w, 0), "epoch 1 repeats epoch 0\n  got       True"),
    "global generator": (_global_seed, "global generator is as before\n  got       False"),
    "uneven": (
        lambda n, r, w, e: epoch_share(n, 0, 1, e)[r * (n // w) : None if r == w - 1 else (r + 1) * (n // w)],
        r"sizes \[12, 12, 12, 14\] differ by at most one\n  got       False",
    ),
    "a list": (lambda *a: epoch_share(*a).tolist(), "got       'list'"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG_SHARES.values(), ids=WRONG_SHARES.keys())
def test_wrong_share(answer, said, capsys):
    assert_not_yet(verdict(capsys, lesson_06.check_epoch_share, answer), said)


def test_global_generator_is_given_back():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    lesson_06.check_epoch_share(_global_seed)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.whole_run
def test_right_program(scripts, capsys):
    program = run(scripts, "exercise_06_2.py", MACRO, 3, torchrun=True)
    assert verdict(capsys, lesson_06.check_macro_accuracy, str(program)) == "Exercise 2: correct\n"


WRONG_PROGRAMS = {
    "not summed": ([("    dist.all_reduce(counts)\n", "")], "macro accuracy as each"),
    "sums on one rank": ([("dist.all_reduce(counts)", "dist.reduce(counts, dst=0)")], "macro accuracy as each"),
    "over all nodes": ([("(right / nodes).mean()", "(right.sum() / nodes.sum())")], "macro accuracy as each"),
    "classes without a node": ([("counts[:, counts[1] > 0]", "counts")], "macro accuracy as each(.|\n)*nan"),
    "fails": (
        [("torch.stack([right, nodes])", "torch.stack(right, nodes)")],
        "has written a result\n  got       False",
    ),
}


@pytest.mark.whole_run
@pytest.mark.parametrize(("changes", "said"), WRONG_PROGRAMS.values(), ids=WRONG_PROGRAMS.keys())
def test_wrong_program(changes, said, scripts, capsys):
    program = run(scripts, "exercise_06_2.py", changed(MACRO, *changes), 3)
    assert_not_yet(verdict(capsys, lesson_06.check_macro_accuracy, str(program)), said)


def _returns_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> None:
        fix_openmp(function)(*args, **options)

    return call


def _keeps_exceptions_only(function: Callable[..., Any]) -> Callable[..., Any]:
    def careful(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except SystemExit:
            return None

    return fix_openmp(careful)


def _hides_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    def careful(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            return error

    return fix_openmp(careful)


WRONG_FIXES = {
    "stub": (lambda _function: None, "got       \"raised TypeError: 'NoneType' object is not callable\""),
    "no thread": (lambda function: function, "got       'no answer within 8 s'"),
    "returns nothing": (_returns_nothing, r"got       'returned None'\n  expected  'returned \(5"),
    "hides errors": (_hides_errors, "got       'returned a label is -1'"),
    "no SystemExit": (_keeps_exceptions_only, "got       'returned None'\n  expected  'raised SystemExit: 3'"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG_FIXES.values(), ids=WRONG_FIXES.keys())
def test_wrong_fix(answer, said, capsys):
    assert_not_yet(verdict(capsys, lesson_06.check_fix_openmp, answer), said)


def test_own_sampler_draws_what_dgl_draws(small_dataset):
    from scripts.ddp_loader import FrontierSampler

    graph, seeds = small_dataset.graph, torch.arange(50)
    drawn = []
    with sampling_threads(1):  # with two, DGL numbers the nodes of a block as its threads find them
        for sampler in (FrontierSampler([3, 4]), dgl.dataloading.MultiLayerNeighborSampler([3, 4])):
            dgl.seed(1)
            drawn.append(sampler.sample(graph, seeds))
    (mine, mine_seeds, mine_blocks), (theirs, _, their_blocks) = drawn
    assert torch.equal(mine, theirs)
    assert torch.equal(mine_seeds, seeds)
    for a, b in zip(mine_blocks, their_blocks, strict=True):
        assert torch.equal(torch.stack(a.edges()), torch.stack(b.edges()))


@pytest.mark.usefixtures("nothing_left")
def test_folder_goes_with_a_killed_process():
    code = (
        "import os, signal; from support.multi_process import temporary_folder\n"
        "print(temporary_folder().name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_absolute()
    wait_until(lambda: not folder.exists(), "the end of the folder", 10)


def test_pictures():
    assert {"its copy of the model", "seed nodes"} <= {text.get_text() for text in plots.two_ranks().axes[0].texts}
    figure = plots.shares({"floor": [[0, 1], [2, 3]], "padded": [[0, 1, 2], [3, 4, 3]]}, range(5))
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"floor: 1 left out, 0 visited twice", "padded: 0 left out, 1 visited twice"} <= texts
    (ax,) = plots.throughput({1: [10.0, 12.0, 11.0], 2: [20.0, 21.0, 19.0], 4: [18.0, 17.0, 19.0]}, 2).axes
    assert list(ax.lines[0].get_ydata()) == [11.0, 22.0, 22.0]
    rows = {1: {"together": 1.0}, 8: {"together": 8.0}}
    (ax,) = plots.memory({"fork": rows, "spawn": rows}).axes
    assert [list(line.get_xdata()) for line in ax.lines] == [[1, 8], [1, 8]]
