"""Checkers of lesson 5, data parallel by hand. Two of them read the results of a program on three ranks."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.exercises import exercise, expect, expect_type, plain
from support.exercises.programs import results

RANKS = 3


def one_process() -> Tensor:
    """Return the weights after the five steps of the lesson's task in one process."""
    from scripts.ddp_task import batches, new_model, points

    x, y = points()
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def _check_weights(program: str, hint: str) -> None:
    files = results(program, f"{Path(program).stem}-*.pt")
    expect("ranks that have written their weights", len(files), RANKS, f"start {RANKS} ranks")
    with torch.random.fork_rng(devices=[]):
        expected = one_process()
    for rank, file in enumerate(files):
        gap = (torch.load(file)["weights"] - expected).abs().max().item()
        expect(f"rank {rank}: largest difference of a weight from one process", round(gap, 5), 0.0, hint)


@exercise(1)
def check_average_gradients(program: str) -> None:
    """Exercise 1: the ``average_gradients`` of a program is right for uneven shares."""
    _check_weights(program, "multiply by `examples` before the sum, and divide by the examples of all ranks after it")


@exercise(3)
def check_hook(program: str) -> None:
    """Exercise 3: a program uses a communication hook that adds gradients."""
    _check_weights(program, "the loss has been divided already: all_reduce bucket.buffer(), and divide by nothing")


# IDs, ranks
SPLITS = ((8, 2), (10, 4), (7, 3), (2, 3), (1, 4))


@exercise(2)
def check_share_of(share_of: Callable[[Tensor, int, int, bool], tuple[Tensor, float]]) -> None:
    """Exercise 2: ``share_of(batch, rank, world_size, pad)`` returns the IDs of a rank and the factor of its loss."""
    for pad in (False, True):
        for count, ranks in SPLITS:
            _check_shares(share_of, count, ranks, pad)


def _check_shares(
    share_of: Callable[[Tensor, int, int, bool], tuple[Tensor, float]], count: int, ranks: int, pad: bool
) -> None:
    batch = torch.arange(count) * 10 + 3
    what = f"{count} ids over {ranks} ranks, pad={pad}"
    parts = [share_of(batch, rank, ranks, pad) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        expect_type(f"{what}: type of what rank {rank} gets", part, "tuple of 2", "return ids, factor")
        expect_type(f"{what}: first item of rank {rank}", part[0], "Tensor")
    together = torch.cat([ids for ids, _ in parts]).sort().values
    sizes = [len(ids) for ids, _ in parts]
    if pad:
        size = -(-count // ranks)
        expect(f"{what}: sizes of the shares", sizes, [size] * ranks, "round up: -(-n // world_size)")
        expected = batch[torch.arange(size * ranks) % count].sort().values
        expect(f"{what}: ids of all ranks together, sorted", together, expected, "what is missing comes from the front")
        factors = [1.0] * ranks
    else:
        hint = "len(batch) // world_size drops the remainder; batch[rank::world_size] does not"
        expect(f"{what}: ids of all ranks together, sorted", together, batch, hint)
        expect(f"{what}: largest share less smallest, at most one", max(max(sizes) - min(sizes), 1), 1, hint)
        factors = [round(size * ranks / count, 6) for size in sizes]
    got = [round(float(plain(factor)), 6) for _, factor in parts]
    hint = "DDP divides the sum by world_size; each example should count 1 / len(batch)"
    expect(f"{what}: factors of shares of {sizes} ids", got, factors, "" if pad else hint)
