"""Random numbers that depend on (seed, epoch, rank) alone."""

from __future__ import annotations

from rank_functions import drawn_after_start_epoch

from tutorial_lib.processes import fix_openmp, fork
from tutorial_lib.trainer.seeding import derived_seed


def test_ranks_draw_different_numbers_and_the_same_ones_again():
    first, again = (fork(fix_openmp(drawn_after_start_epoch), 2, backend="gloo", threads=1) for _ in range(2))
    assert first == again
    assert all(one != other for one, other in list(zip(*first, strict=True))[:2])


def test_seeds_differ_for_each_epoch_and_rank():
    seeds = {derived_seed(seed, epoch, rank) for seed in (0, 1) for epoch in range(5) for rank in (0, 1, 2**20)}
    assert len(seeds) == 2 * 5 * 3
