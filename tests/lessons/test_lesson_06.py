"""The checkers of lesson 6 know right from wrong; its sampler agrees with DGL."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from program_support import changed, run, written
from solution_support import answer_tests, solutions
from torch import Tensor

from support.exercises import lesson_06
from tutorial_lib.sampling.nodes import sampling_threads

ANSWERS = solutions("06")
epoch_share, fix_openmp = ANSWERS.epoch_share, ANSWERS.fix_openmp
MACRO = written("06", "exercise_06_2.py")


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


test_right_share, test_wrong_share = answer_tests(lesson_06.check_epoch_share, [epoch_share], WRONG_SHARES)


def test_global_generator_is_given_back():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    lesson_06.check_epoch_share(_global_seed)
    assert torch.equal(before, torch.get_rng_state())


@pytest.fixture
def ran(scripts: Path) -> Callable[[list[tuple[str, str]]], tuple[str]]:
    """Run the solution's program, with some of it changed, on predictions in which no node is of class 2."""
    labels = torch.tensor([0] * 20 + [1] * 7 + [3] * 3 + [4])
    predictions = labels.clone()
    predictions[::3] = 0
    torch.save((predictions, labels), scripts / "out" / "answers.pt")
    return lambda changes: (str(run(scripts, "exercise_06_2.py", changed(MACRO, *changes), 3)),)


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


test_right_program, test_wrong_program = map(
    pytest.mark.whole_run, answer_tests(lesson_06.check_macro_accuracy, [[]], WRONG_PROGRAMS, "ran")
)


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


@pytest.fixture
def after_openmp() -> Callable[[Any], tuple[Any]]:
    """A learner's kernel has used OpenMP, too."""
    torch.ones(2_000_000).sum()
    return lambda answer: (answer,)


test_right_fix, test_wrong_fix = answer_tests(
    lesson_06.check_fix_openmp, [fix_openmp], WRONG_FIXES, through="after_openmp"
)


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
