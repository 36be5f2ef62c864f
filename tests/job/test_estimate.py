"""The arithmetic of a plan: rows that are kept, what a wire hides, memory as it was measured, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.estimate import Estimate, Speed, estimate, fitting_cache
from tutorial_lib.job.reach import Hops, Setting, assumed_hops, mean_of, shape_of
from tutorial_lib.job.source import DataSource
from tutorial_lib.tools.plan import sizes_of
from tutorial_lib.trainer.config import TrainConfig

POOL, REMOTE, SHAPE = 4000, 500, 0.7


def setting_at(scale: float, machines: int = 2, *, wire: float | None = None, trainers: int = 1, **config) -> Setting:
    """Of synthetic-products, on two cores."""
    sizes = sizes_of(DataSource("synthetic-products", scale=scale))
    return Setting(**sizes, machines=machines, trainers=trainers, config=TrainConfig(**config), wire=wire, cores=2)


@pytest.mark.parametrize("capacity", [0, 100, 300, 700, 1500, POOL])
def test_rows_come_as_a_cache_that_keeps_what_is_needed_soonest_lets_them(capacity):
    """Against batches; how often each row is asked for is drawn, as the formula assumes."""
    rng, steps = np.random.default_rng(3), 40
    rate = rng.gamma(SHAPE, 1.0, POOL)
    batches = [rng.choice(POOL, REMOTE, replace=False, p=rate / rate.sum()) for _ in range(steps)]
    kept, pulled, later = np.zeros(POOL, dtype=bool), 0, np.zeros(POOL)
    for now, batch in enumerate(batches):
        pulled += (~kept[batch]).sum()
        kept[batch] = True
        later[:] = steps
        for number in range(steps - 1, now, -1):
            later[batches[number]] = number
        there = np.flatnonzero(kept)
        kept[there[np.argsort(later[there], kind="stable")[capacity:]]] = False
    shape = shape_of(POOL, REMOTE, steps, len(np.unique(np.concatenate(batches))))
    assert Hops((), (), 0, REMOTE, POOL, shape).pulled(steps, capacity) == pytest.approx(pulled, rel=0.1)


def test_the_shape_is_found_again():
    for shape in (0.05, 0.7, 5.0):
        seen = Hops((), (), 0, REMOTE, POOL, shape).seen(12)
        assert shape_of(POOL, REMOTE, 12, seen) == pytest.approx(shape, rel=1e-3)


def test_the_mean_of_ranks():
    one, other = Hops((2, 4), (6, 8), 10, 2, 7, 1.0), Hops((4, 8), (10, 12), 20, 4, 7, 3.0)
    assert mean_of([one, other]) == Hops((3, 6), (8, 10), 15, 3, 7, 2.0)


# benchmarks/RESULTS.md, plan: jobs that no constant was fitted to. Bytes of the largest server and trainer.
MEASURED = {
    (0.01, 2, (15, 10, 5)): (0.46e9, 0.75e9),
    (0.04, 2, (15, 10, 5)): (0.65e9, 1.30e9),
}


@pytest.mark.parametrize("case", MEASURED)
def test_memory_from_numbers_alone_is_near_what_was_measured(case):
    scale, machines, fanouts = case
    found = estimate(setting_at(scale, machines, fanouts=fanouts, epochs=3))
    assert (found.server, found.trainer) == pytest.approx(MEASURED[case], rel=0.2)


def test_trainers_of_a_machine_share_rows_where_together_they_have_room_for_all():
    def estimated(trainers: int, cache: int) -> Estimate:
        return estimate(setting_at(0.04, trainers=trainers, cache=cache))

    assert estimated(1, 24_000_000).kept < 1
    assert estimated(2, 24_000_000).kept == 1
    assert estimated(2, 12_000_000).kept < 0.5
    assert estimated(2, 24_000_000).later < estimated(2, 12_000_000).later / 2


def test_memory_of_a_machine_grows_with_what_is_on_it():
    base = setting_at(0.04)
    one = estimate(base)
    assert estimate(replace(base, trainers=2)).machine > one.machine + 0.5e9
    assert estimate(replace(base, servers=2)).machine > one.machine + 0.2e9
    assert one.all == pytest.approx(2 * one.machine, rel=0.3)
    halved = estimate(replace(base, machines=4))
    assert halved.machine < one.machine
    assert halved.all > one.all


def test_one_machine_sends_nothing():
    found = estimate(setting_at(0.04, 1, wire=1e6))
    assert (found.rows, found.step, found.sent, found.job, found.enough) == (0, 0, 0, 0, None)
    assert found.seconds["gradients"] == found.seconds["waiting"] == 0


def test_a_wire_that_is_named_as_enough_is_just_hidden():
    base = setting_at(0.04, cache=0)
    enough = estimate(base).enough
    assert enough is not None

    def awaited(wire: float) -> float:
        found = estimate(replace(base, wire=wire))
        return found.seconds["the wire, not hidden"] / found.setting.steps

    # At just enough only the first batch of an epoch is waited for (and the answers to its questions).
    faster, slower, slowest = (awaited(factor * enough) for factor in (2.0, 0.5, 0.25))
    assert faster < slower / 5
    assert slowest > 2.5 * slower


def test_gradients_cost_what_a_ring_sends():
    base = setting_at(0.04, wire=1e8)
    two, four = estimate(base), estimate(replace(base, machines=4))
    assert base.parameters == 2 * (100 * 256 + 256 * 256 + 256 * 47) + 2 * 256 + 47
    ratio = (four.seconds["gradients"] / four.setting.steps) / (two.seconds["gradients"] / two.setting.steps)
    assert ratio == pytest.approx(1.5, rel=0.05)  # 2 (W - 1) / W of the weights


def test_what_is_measured_is_used():
    base = setting_at(0.04)
    hops = assumed_hops(base)
    slow = estimate(base, hops, Speed(10.0, 1.0, "measured"))
    assert slow.seconds["computing"] == pytest.approx(10 * base.steps)
    crowded = estimate(replace(base, trainers=2), hops, Speed(10.0, 1.0, "measured"))
    assert crowded.seconds["computing"] == pytest.approx(2 * 10 * crowded.setting.steps)  # two share a core


def test_memory_that_was_not_held_before_slows_the_first_two_epochs():
    base = setting_at(0.04, 1)
    hops, speed = assumed_hops(base), Speed(0.1, 0.01, "measured")
    found = [
        estimate(replace(base, config=replace(base.config, epochs=epochs)), hops, speed) for epochs in (1, 2, 5, 50)
    ]
    held = [one.seconds["memory held first"] for one in found]
    assert held[0] == 0  # there is no later epoch
    assert held[1] == pytest.approx(4 * held[2], rel=0.05)  # the second epoch is one of four
    assert found[3].epoch < found[2].epoch < found[1].epoch < found[1].first_epoch
    assert found[1].first_epoch - (found[1].epoch - held[1]) == pytest.approx(4.4 * held[1], rel=0.05)


def test_questions_take_time_of_a_core_and_more_with_more_machines():
    speed = Speed(0.0, 0.0, "measured")
    alone, two, four = (setting_at(0.04, machines, cache=0) for machines in (1, 2, 4))
    hops = replace(assumed_hops(two), remote=1.0, asked=0.0, answered=0.0)
    two, four = (
        estimate(replace(base, cores=8), hops, speed).seconds["drawing and reading"] / base.steps
        for base in (two, four)
    )
    assert estimate(alone, assumed_hops(alone), speed).seconds["drawing and reading"] == 0
    assert two == pytest.approx(4 * 5e-3, rel=0.05)  # three hops and the rows
    assert four == pytest.approx(4 * 8e-3, rel=0.05)


def test_full_neighbours_are_no_more_than_the_graph():
    hops = assumed_hops(setting_at(0.04, fanouts=(-1, -1, -1)))
    base = setting_at(0.04)
    assert max(hops.edges) <= base.edges
    assert max(hops.sizes) <= base.nodes
    assert hops.rows <= base.nodes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"machines": 0}, "machines 0: 1 to 10000000000000"),
        ({"nodes": 0}, "nodes 0"),
        ({"train": 0}, "no training nodes"),
        ({"train": 10**9}, "training and validation nodes, and 489,806 in all"),
    ],
)
def test_what_cannot_be_is_refused(change, says):
    base = setting_at(0.2)
    with pytest.raises(InputError, match=says) as refused:
        replace(base, **change)
    assert refused.value.exit_code == 2


def test_a_cache_grows_until_all_that_is_remote_fits_or_memory_is_short():
    usual = TrainConfig.cache

    def chosen(scale: float, **more) -> int:
        return fitting_cache(replace(setting_at(scale), **more))

    assert chosen(0.04, memory=20e9) == usual  # it holds everything
    whole = setting_at(1.0)
    enough = fitting_cache(replace(whole, memory=1e12))
    rows = 4 * whole.width * whole.nodes / 2
    assert rows < enough < 2.5 * rows
    assert (enough // usual).bit_count() == 1  # doubled, and nothing between: another amount draws other batches
    assert estimate(replace(whole, config=TrainConfig(cache=enough))).kept == 1
    needed = estimate(replace(whole, config=TrainConfig(cache=0))).needed
    assert chosen(1.0, memory=needed + 8 * usual) == 2 * usual  # two trainers and half of it
    assert chosen(1.0, memory=needed / 2) == usual
    assert chosen(1.0, memory=1e12, together=False) == usual
    assert chosen(1.0, memory=1e12, config=TrainConfig(loader="dgl")) == usual
