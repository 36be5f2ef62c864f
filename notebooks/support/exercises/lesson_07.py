"""Checkers of lesson 7, the pitfalls of data-parallel training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from support.exercises import exercise, expect

# number of ids, ranks
SHARE_CASES = ((40, 2), (41, 2), (50, 4), (3, 5))


@exercise(1)
def check_epoch_share(epoch_share: Callable[[int, int, int, int], Tensor]) -> None:
    """Exercise 1: shares that cover all ids once, and are new in each epoch."""
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


# per rank the gradients of its steps; with the initial world size; with the ranks that are left
JOIN_CASES = (
    ([[2.0, 4.0], [6.0]], [4.0, 2.0], [4.0, 4.0]),
    ([[1.0], [3.0, 8.0, 4.0]], [2.0, 4.0, 2.0], [2.0, 8.0, 4.0]),
    ([[3.0, 3.0], [6.0], [], [3.0, 9.0, 8.0]], [3.0, 3.0, 2.0], [4.0, 6.0, 8.0]),
    ([[5.0], [7.0]], [6.0], [6.0]),
)


@exercise(2)
def check_joined_gradients(joined_gradients: Callable[[list[list[float]], bool], list[float]]) -> None:
    """Exercise 2: the gradient of each step under ``Join``."""
    for gradients, by_initial, by_active in JOIN_CASES:
        for initial, expected in ((True, by_initial), (False, by_active)):
            got = joined_gradients([list(rank) for rank in gradients], initial)
            divisor = "all ranks" if initial else "the ranks that still have a batch"
            what = f"gradients {gradients}, divide_by_initial_world_size={initial}"
            expect(what, got, expected, f"divide by the number of {divisor}; who has none left gives zero")


# What each process does: (seconds, then the exit code or minus a signal); what the function should return.
NAP = 8.0
QUICK = 4.0  # a function that returns later has waited for a process that it should have ended
WATCH_CASES = (
    ([(0.0, 0), (0.2, 3), (NAP, 0)], (1, 3)),
    ([(0.2, -9), (NAP, 0)], (0, -9)),
    ([(NAP, 0), (0.1, 0), (0.3, 1)], (2, 1)),
    ([(0.1, 0), (0.3, 0)], None),
)


@exercise(3)
def check_first_failure(first_failure: Callable[[Sequence[Any], float], tuple[int, int] | None]) -> None:
    """Exercise 3: real processes, of which one fails, or all sleep too long."""
    for plan, expected in WATCH_CASES:
        what = "processes: " + ", ".join(f"{k} {_words(*entry)}" for k, entry in enumerate(plan))
        got, seconds, left = _watch(first_failure, plan, 30.0)
        expect(f"{what}: what came back", got, expected, "look at .exitcode of each, again and again")
        expect(f"{what}: it came back at once", seconds < QUICK, True, "join() without a limit waits for sleepers")
        expect(f"{what}: still running", left, [], "terminate() the others, then join() them")
    plan = [(NAP, 0), (NAP, 0)]
    got, seconds, left = _watch(first_failure, plan, 0.5)
    expect("all sleep and the limit is half a second: what was raised", got, "TimeoutError")
    expect("all sleep and the limit is half a second: it came at once", seconds < QUICK, True)
    expect("all sleep and the limit is half a second: still running", left, [], "end them before you raise")


def _words(seconds: float, code: int) -> str:
    if seconds == NAP:
        return "sleeps"
    return f"ends by signal {-code}" if code < 0 else f"ends with exit code {code}"


def _watch(
    first_failure: Callable[[Sequence[Any], float], tuple[int, int] | None],
    plan: Sequence[tuple[float, int]],
    limit: float,
) -> tuple[Any, float, list[int]]:
    """Start the processes and call the function: its answer, its seconds, and the numbers of those that still run."""
    processes = [multiprocessing.get_context("fork").Process(target=_nap, args=entry, daemon=True) for entry in plan]
    for process in processes:
        process.start()
    start = time.monotonic()
    try:
        try:
            got: Any = first_failure(processes, limit)
        except TimeoutError:
            got = "TimeoutError"
        seconds = time.monotonic() - start
        return got, seconds, [number for number, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _nap(seconds: float, code: int) -> None:
    """Ends earlier when the parent has gone."""
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(0.02)
    if code < 0:
        os.kill(os.getpid(), signal.Signals(-code))
    os._exit(code)
