"""Checkers of lesson 6, node classification on many ranks."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect
from support.exercises.programs import result
from support.processes import RanksTimedOut, fork
from support.processes import fix_openmp as in_a_thread

# number of IDs, ranks
SHARE_CASES = ((40, 2), (41, 2), (50, 4), (3, 5))


@exercise(1)
def check_epoch_share(epoch_share: Callable[[int, int, int, int], Tensor]) -> None:
    """Exercise 1: the shares of all ranks contain every ID once and differ between epochs."""
    before = torch.get_rng_state()
    for count, ranks in SHARE_CASES:
        epochs = [_shares(epoch_share, count, ranks, epoch) for epoch in range(2)]
        for epoch, shares in enumerate(epochs):
            where = f"{count} ids, {ranks} ranks, epoch {epoch}"
            hint = "every rank must shuffle with the same seed, before the ids are divided"
            together = torch.cat(shares).sort().values
            expect(f"{where}: the shares of all ranks together, sorted", together, torch.arange(count), hint)
            sizes = [len(share) for share in shares]
            fair = max(sizes) - min(sizes) <= 1
            expect(f"{where}: sizes {sizes} differ by at most one", fair, True, "ids[rank::world_size] is one way")
        if count >= 40:
            repeats = torch.equal(*(torch.cat(shares) for shares in epochs))
            expect(f"{count} ids: epoch 1 repeats epoch 0", repeats, False, "put the epoch into the seed")
            together = max(len(set(a.tolist()) & set(b.tolist())) / len(a) for a in epochs[0] for b in epochs[1])
            hint = "shuffle all ids and then divide them: to turn or to reverse their order gives the same shares"
            expect(f"{count} ids: a share of epoch 0 stays together in epoch 1", together > 0.85, False, hint)
        again = torch.equal(torch.cat(_shares(epoch_share, count, ranks, 1)), torch.cat(epochs[1]))
        expect(f"{count} ids: asked again, epoch 1 is the same", again, True)
    hint = "a torch.Generator of your own leaves the global one, from which dropout draws, alone"
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    expect("the global generator is as before", torch.equal(before, after), True, hint)


def _shares(epoch_share: Callable[[int, int, int, int], Tensor], count: int, ranks: int, epoch: int) -> list[Tensor]:
    shares = [epoch_share(count, rank, ranks, epoch) for rank in range(ranks)]
    for rank, share in enumerate(shares):
        kind = f"{share.dtype} tensor" if isinstance(share, Tensor) else type(share).__name__
        expect(f"{count} ids, {ranks} ranks: what came back for rank {rank}", kind, "torch.int64 tensor")
    return shares


RANKS = 3


@exercise(2)
def check_macro_accuracy(program: str) -> None:
    """Exercise 2: every rank of a program computes the mean of the accuracies of all classes."""
    found = result(program)
    predictions, labels = torch.load(Path(program).with_name("out") / "answers.pt")
    classes = [(predictions[labels == k] == k).double().mean().item() for k in labels.unique()]
    expected = [round(sum(classes) / len(classes), 4)] * RANKS
    got = [round(float(value), 4) for value in found]
    hint = "sum two vectors over the ranks, right answers and nodes of each class; divide after it; leave out classes"
    expect(f"macro accuracy as each of {RANKS} ranks has it", got, expected, f"{hint} without a node")


def _add(first: int, second: int = 0) -> tuple[int, float]:
    """Use OpenMP, as a training step does."""
    return first + second, torch.ones(2_000_000).sum().item()


def _raise(what: BaseException) -> None:
    raise what


# function, its arguments, and the expected result
CALLS = (
    (_add, (2,), {"second": 3}, "returned (5, 2000000.0)"),
    (_raise, (ValueError("a label is -1"),), {}, "raised ValueError: a label is -1"),
    (_raise, (SystemExit(3),), {}, "raised SystemExit: 3"),
)


@exercise(3)
def check_fix_openmp(fix_openmp: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Exercise 3: results and exceptions of the function arrive in a forked child of a process that used OpenMP."""
    for function, args, options, expected in CALLS:

        def child(answers: Any) -> None:
            try:
                answers.put(f"returned {fix_openmp(function)(*args, **options)}")  # noqa: B023
            except BaseException as error:
                answers.put(f"raised {type(error).__name__}: {error}")

        def parent(_rank: int, _world_size: int) -> str:
            torch.set_num_threads(2)
            _add(1)  # from now on, this process has OpenMP threads
            context: Any = multiprocessing.get_context("fork")
            answers = context.SimpleQueue()
            process = context.Process(target=child, args=(answers,))
            process.start()
            process.join(8)
            process.kill()
            return "no answer within 8 s" if answers.empty() else answers.get()

        try:
            (got,) = fork(in_a_thread(parent), 1, timeout=60, echo=False)  # this process may have used OpenMP, too
        except RanksTimedOut:
            got = "no answer"
        hint = "keep what the function returned or raised in the thread, and return or raise it after join()"
        expect(f"in a forked child: {function.__name__}{args}", got, expected, hint)
