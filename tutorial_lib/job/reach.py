"""What a step of a job reaches: from a few numbers of the graph, or drawn on a partition (``sampled.sample_hops``).

Remote rows that are kept. A step asks for R remote rows out of M that there are, some far more often than others. If
rates are distributed as Gamma with shape a, t steps see D(t) = M (1 - (1 + t R / (M a))^-a) different ones, and a step
asks for R (1 + t R / (M a))^-(a + 1) that none of the t steps before it did: rows come once until the cache is full.
From then on those stay that are needed soonest, see `batches.table`: a row that will be needed g steps later lies there
for g steps. One number, a, says how much a cache is worth on a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.models.sage import stored_sizes
from tutorial_lib.trainer.config import TrainConfig

GIVEN, SAMPLED, MEASURED, ASSUMED = "given", "sampled", "measured", "assumed"  # where a figure comes from

CUT, CUT_GROWTH = 0.045, 1.37  # edges cut into two parts, and the power of log2(parts): of our graphs
SPREAD = 1.18  # of the logarithm of degrees: a mean that is twice the median, as of products
MOST = 10**13  # of what is counted: more is a mistake
FRESH = 0.85  # of the neighbours drawn: the others are neighbours of each other, and were drawn before
QUANTILES, FEW = 24, 4
MOST_AHEAD = 32  # steps, of ``batches.table.RowTable``


@dataclass(frozen=True)
class Setting:
    """What is asked.

    Attributes:
        nodes, edges: of the graph, edges in both directions.
        width, classes: features of a node; classes of nodes.
        train, val: training and validation nodes.
        machines, trainers, servers: trainers and servers on each machine.
        wire: bits per second of each machine's; None: emulated, not shaped.
        together: the machines share this computer, its memory and its cores.
        cores, memory: cores and bytes of each machine; where they share a computer, of that.
    """

    nodes: int
    edges: int
    width: int
    classes: int
    train: int
    val: int
    machines: int = 2
    trainers: int = 1
    servers: int = 1
    config: TrainConfig = field(default_factory=TrainConfig)
    wire: float | None = None
    together: bool = True
    cores: int = 1
    memory: float = math.inf

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "width", "classes", "machines", "trainers", "servers"):
            if not 1 <= (value := getattr(self, name)) <= MOST:
                raise InputError(f"{name} {str(value)[:30]}: 1 to {MOST} can be planned")
        if self.val < 0:
            raise InputError(f"{self.val} validation nodes: none are 0")
        if self.train < 1:
            raise InputError("no training nodes: nothing would be learned", "Give --train-nodes, or mark some.")
        if self.train + self.val > self.nodes:
            raise InputError(f"{self.train + self.val:,} training and validation nodes, and {self.nodes:,} in all")

    @property
    def world(self) -> int:
        """Ranks."""
        return self.machines * self.trainers

    @property
    def steps(self) -> int:
        """Of a rank in an epoch."""
        return math.ceil(self.train / self.world / self.config.batch_size)

    @property
    def validating(self) -> float:
        """A validation in steps of training: as many seed nodes."""
        return self.val / self.world / (self.train / self.world / self.steps)

    @property
    def keeps(self) -> bool:
        """Whether trainers keep what came from other machines."""
        return self.config.loader != "dgl" and self.config.cache > 0

    @property
    def hides(self) -> bool:
        """Whether batches are made while others are computed."""
        return self.config.loader != "dgl" and self.config.ahead > 0

    @property
    def sizes(self) -> list[int]:
        """Of the model's layers."""
        return [self.width, *[self.config.hidden_size] * (len(self.config.fanouts) - 1), max(1, self.classes)]

    @property
    def stored(self) -> list[int]:
        """Columns of what the exact evaluation reads, then those of each layer's store."""
        return stored_sizes(self.sizes) if self.config.loader != "dgl" else self.sizes

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(2 * a * b + b for a, b in pairwise(self.sizes))

    @property
    def threads(self) -> int:
        """Of a trainer."""
        return max(1, self.cores // (self.trainers * (self.machines if self.together else 1)))

    @property
    def crowding(self) -> float:
        """Trainers that share a core."""
        return max(1.0, self.trainers * (self.machines if self.together else 1) / self.cores)


@dataclass(frozen=True)
class Hops:
    """What a step of one rank reaches, in the mean.

    Attributes:
        sizes: nodes whose neighbours are drawn in each hop, the seeds first.
        edges: that are drawn in each hop.
        rows: different input rows; remote: those of other machines.
        pool, shape: remote rows that there are, and the a of this module's text.
        asked, answered: nodes whose neighbours other machines draw, and those neighbours.
        lists, travelled: bytes of lists of remote nodes that are kept; on the wire for them, once.
        evaluated: remote rows of a batch of the evaluation.
        halo: remote nodes with edges into a part.
        cut: share of the edges between parts.
        part, part_edges: the largest part beside the mean one.
        seconds: to draw the neighbours, where that was measured.
    """

    sizes: tuple[float, ...]
    edges: tuple[float, ...]
    rows: float
    remote: float
    pool: float
    shape: float
    asked: float = 0.0
    answered: float = 0.0
    lists: float = 0.0
    travelled: float = 0.0
    evaluated: float = 0.0
    halo: float = 0.0
    cut: float = 0.0
    part: float = 1.05
    part_edges: float = 1.05
    seconds: float = 0.0
    source: str = ASSUMED

    def seen(self, steps: float) -> float:
        """D(t)."""
        return (
            self.pool * (1 - (1 + steps * self.remote / (self.pool * self.shape)) ** -self.shape) if self.pool else 0.0
        )

    def pulled(self, steps: float, capacity: float) -> float:
        """Remote rows that have come over the wire after so many steps, with room for ``capacity`` of them."""
        if self.pool <= capacity or self.seen(steps) <= capacity:
            return self.seen(steps)
        full = self.pool * self.shape / self.remote * ((1 - capacity / self.pool) ** (-1 / self.shape) - 1)
        return capacity + (steps - full) * self.steady(capacity)

    def steady(self, capacity: float) -> float:
        """Remote rows that a step pulls when there is room for ``capacity`` of them, and it is used up."""
        before, room = self.remote, capacity
        for gap in range(1, MOST_AHEAD + 1):
            new = self.remote * (1 + gap * self.remote / (self.pool * self.shape)) ** (-self.shape - 1)
            if gap * (before - new) >= room:
                return before - room / gap
            room -= gap * (before - new)
            before = new
        return before


def mean_of(found: Sequence[Hops]) -> Hops:
    """Of several ranks."""
    each = [asdict(hops) for hops in found]
    numbers = {name: [one[name] for one in each] for name in each[0] if name != "source"}
    return Hops(**{name: _mean(values) for name, values in numbers.items()}, source=found[0].source)


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], tuple):
        return tuple(map(_mean, zip(*values, strict=True)))
    return sum(values) / len(values)


def shape_of(pool: float, remote: float, steps: float, seen: float) -> float:
    """The a with which ``steps`` steps see so many different rows."""
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(60):
        middle = (low + high) / 2
        found = Hops((), (), 0, remote, pool, math.exp(middle)).seen(steps)
        low, high = (middle, high) if found < seen else (low, middle)
    return math.exp(low)


def cut_of(machines: int) -> float:
    """Share of the edges that METIS cuts, if the graph is like ours."""
    return min(1 - 1 / machines, CUT * math.log2(machines) ** CUT_GROWTH) if machines > 1 else 0.0


def assumed_hops(setting: Setting) -> Hops:
    """From numbers alone: neighbours drawn by their degrees, which are spread as those of products."""
    n, degree, config = setting.nodes, setting.edges / setting.nodes, setting.config
    marks = [NormalDist().inv_cdf((k + 0.5) / QUANTILES) for k in range(QUANTILES)]
    raw = [math.exp(SPREAD * mark) for mark in marks]
    degrees = [max(1.0, one * degree * QUANTILES / sum(raw)) for one in raw]
    share = [one / sum(degrees) for one in degrees]  # of the edges: who is reached

    def different(draws: float, among: float) -> float:
        return sum(among / QUANTILES * -math.expm1(-draws * one * QUANTILES / among) for one in share) if among else 0.0

    nodes = setting.train / setting.world / setting.steps
    cut = cut_of(setting.machines)
    pool = n * (1 - 1 / setting.machines)
    sizes, edges, draws, strange, asked = [], [], 0.0, 0.0, 0.0
    for hop, fanout in enumerate(reversed(config.fanouts)):
        each = sum((1 / QUANTILES if hop == 0 else s) * (d if fanout < 0 else min(fanout, d))
                   for s, d in zip(share, degrees, strict=True))  # fmt: skip
        sizes.append(nodes)
        edges.append(min(nodes * each, setting.edges))
        asked += different(strange, pool)
        draws += edges[-1]
        strange += edges[-1] * (1 - (1 - cut) ** (hop + 1))
        nodes = min(n, sizes[0] + different(FRESH * draws, n))
    remote = min(different(strange, pool), nodes)
    part = setting.edges / setting.machines
    shape = shape_of(pool, remote, FEW, different(FEW * strange, pool)) if remote else 1.0
    halo = different(cut * part, pool)
    wanted = 4 * degree * min(pool, 2 * halo if len(config.fanouts) > 2 else halo)
    lists = min(wanted, setting.trainers * config.cache / 2) if setting.keeps and len(config.fanouts) > 1 else 0.0
    asked *= 1 - lists / wanted if wanted else 0.0
    evaluated = different(cut * config.eval_batch_size * degree, pool)
    return Hops(
        tuple(sizes), tuple(edges), nodes, remote, pool, shape, asked, asked * edges[-1] / sizes[-1], lists,
        lists * (1 + 3 / degree), min(evaluated, halo), halo, cut,
    )  # fmt: skip
