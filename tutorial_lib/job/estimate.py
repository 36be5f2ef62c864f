"""What a job will need, from a few numbers: memory, bytes on the wire, seconds, and where more stops helping.

    Setting   what is asked: the graph's numbers, machines, options of the training
    Hops      what a step of a rank reaches: ``assumed`` from the numbers, or drawn on a partition (``sampled``)
    Speed     seconds of a step without the wire: from constants, or measured on this computer (``sampled.calibrate``)
    estimate  arithmetic on the three; every figure says where it comes from

Constants were fitted to runs of ``train`` on synthetic-products, on two cores (``benchmarks/RESULTS.md``, "Plan",
says to which, and how far the estimate was off on others).

Remote rows that are kept. A step asks for R remote rows out of M that there are, some far more often than others. If
rates are distributed as Gamma with shape a, t steps see D(t) = M (1 - (1 + t R / (M a))^-a) different ones, and a step
after t steps asks for R (1 + t R / (M a))^-(a + 1) that none before it did: rows come once until the cache is full, and
from then on only what was seen before is found there. One number, a, says how much a cache is worth on a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.trainer.config import TrainConfig

GIVEN, SAMPLED, MEASURED, ASSUMED = "given", "sampled", "measured", "assumed"  # from the surest to the least sure

# Bytes: a process without a graph; of each edge and node of its part; and what two processes of a machine share.
SERVER, SERVER_EDGE, SERVER_NODE, LIBRARIES = 0.41e9, 43, 24, 0.13e9
TRAINER, TRAINER_EDGE, EVERY_NODE = 0.50e9, 12, 19
PIECES, PIECE_EDGE = 8.4e6, 16  # edges that a trainer converts at a time, and bytes for each of them
HIDDEN = 9  # times the rows that the layers put out: their gradients, dropout, what the optimiser needs
STORED = 4  # bytes of a float32
COMMAND = 0.45e9  # bytes: the command itself, and an agent for each machine
QUESTION, ANSWER, MAP = 8, 24, 16  # bytes on the wire: a node that is asked for; a neighbour; a node's prediction
CUT, CUT_GROWTH = 0.045, 1.37  # edges cut into two parts, and the power of log2(parts): of our graphs
SHARED = 0.35  # trainers of a machine need the same remote rows: each that power of their number less
SPREAD = 1.18  # of the logarithm of degrees: a mean that is twice the median, as of products
QUANTILES, FEW = 24, 4
UNSHAPED = 8e9  # bits per second between emulated machines without --wire
EFFICIENCY, LATENCY, COPIED = (
    0.8,
    0.3e-3,
    330e6,
)  # of a wire; seconds for an answer; bytes a core sends and takes a second
# Of one core, in a second: additions and multiplications; bytes that layers put out; bytes of rows read; edges drawn.
FLOPS, MOVED, READ, DRAWN = 62e9, 2.5e9, 7e9, 12e6
THREADS = 0.85  # what each further thread of a trainer adds
WAITING = 0.04  # of the computing: ranks are never equally fast


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
        for name in ("nodes", "edges", "width", "machines", "trainers", "servers"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} {value}: at least 1 is needed")
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
    def sizes(self) -> list[int]:
        """Of the model's layers."""
        return [self.width, *[self.config.hidden_size] * (len(self.config.fanouts) - 1), max(1, self.classes)]

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
        return capacity + (steps - full) * self.remote * (1 - capacity / self.pool) ** ((self.shape + 1) / self.shape)


def mean_of(found: Sequence[Hops]) -> Hops:
    """Of several ranks."""
    each = [asdict(hops) for hops in found]
    numbers = {name: [one[name] for one in each] for name in each[0] if name != "source"}
    return Hops(**{name: _mean(values) for name, values in numbers.items()}, source=found[0].source)


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], tuple):
        return tuple(map(_mean, zip(*values, strict=True)))
    return sum(values) / len(values)


@dataclass(frozen=True)
class Speed:
    """Seconds of a step of one trainer that has its threads for itself: computing; drawing and reading rows."""

    computing: float
    fetching: float
    source: str = ASSUMED


def work_of(setting: Setting, hops: Hops) -> tuple[float, float]:
    """Multiplications and additions of a step, forward and backward, and bytes of what the layers put out."""
    layers = list(zip(pairwise(setting.sizes), reversed(hops.sizes), strict=True))
    flops = sum((2 if depth == 0 else 3) * 4 * rows * a * b for depth, ((a, b), rows) in enumerate(layers))
    return flops, sum(4 * rows * b for (_, b), rows in layers)


def assumed_speed(setting: Setting, hops: Hops) -> Speed:
    """From constants: one core of the computer on which they were measured, times this trainer's threads."""
    flops, moved = work_of(setting, hops)
    threads = 1 + THREADS * (setting.threads - 1)
    fetching = sum(hops.edges) / DRAWN + 4 * setting.width * hops.edges[-1] / READ
    return Speed((flops / FLOPS + moved / MOVED) / threads, fetching)


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
        nodes = min(n, sizes[0] + different(draws, n))
    remote = different(strange, pool)
    part = setting.edges / setting.machines
    shape = shape_of(pool, remote, FEW, different(FEW * strange, pool)) if remote else 1.0
    halo = different(cut * part, pool)
    wanted = 4 * degree * min(pool, 2 * halo if len(config.fanouts) > 2 else halo)
    lists = min(wanted, config.cache / 2) if setting.keeps and len(config.fanouts) > 1 and wanted else 0.0
    asked *= 1 - lists / wanted if wanted else 0.0
    evaluated = different(cut * config.eval_batch_size * degree, pool)
    return Hops(
        tuple(sizes), tuple(edges), nodes, remote, pool, shape, asked, asked * edges[-1] / sizes[-1], lists,
        lists * (1 + 3 / degree), min(evaluated, halo), halo, cut,
    )  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """What a job will need.

    Attributes:
        server, trainer, machine, all: bytes: of a process, of the largest machine, of this computer with all machines.
        rows: remote rows of a step; first, later: of them, what is pulled in a step of the first and of a later epoch.
        step: bytes that a machine sends in a step of a later epoch, gradients included; sent: of all in an epoch.
        job: bytes that all machines send, start and evaluation included.
        seconds: of a later epoch, by part; first_epoch: in sum, of the first.
        enough: bits per second of a wire that the computing hides; None: nothing has to be hidden.
    """

    setting: Setting
    hops: Hops
    speed: Speed
    server: float
    trainer: float
    machine: float
    all: float
    rows: float
    first: float
    later: float
    step: float
    sent: float
    job: float
    seconds: dict[str, float]
    first_epoch: float
    enough: float | None

    @property
    def epoch(self) -> float:
        """Seconds of a later epoch."""
        return sum(self.seconds.values())

    def beside(self, result: dict[str, Any]) -> dict[str, list[float]]:
        """For ``result.json``: what was told, and what it was: seconds of a later epoch, bytes that all have sent."""
        seconds = [epoch["seconds"] for epoch in result["epochs"]]
        told = {"epoch_seconds": self.epoch if len(seconds) > 1 else self.first_epoch, "bytes_sent": self.job}
        later = seconds[1:] or seconds
        was = {"epoch_seconds": sum(later) / len(later), "bytes_sent": sum(result["bytes_sent"].values())}
        return {name: [told[name], was[name]] for name in told}

    @property
    def needed(self) -> float:
        """Bytes of memory where they are compared with what there is: all machines together, or the largest."""
        return self.all if self.setting.together else self.machine

    @property
    def fits(self) -> bool:
        """Whether there is as much memory."""
        return self.needed <= self.setting.memory


def estimate(setting: Setting, hops: Hops | None = None, speed: Speed | None = None) -> Estimate:
    """Arithmetic on what a step reaches and how long it takes; both are assumed where they are not given."""
    hops = hops or assumed_hops(setting)
    speed = speed or assumed_speed(setting, hops)
    config, machines, trainers, steps = setting.config, setting.machines, setting.trainers, setting.steps
    row = STORED * setting.width
    capacity = max(0.0, (config.cache - hops.lists) / row) if setting.keeps else 0.0
    per_epoch = steps + setting.validating
    epochs = max(1, config.epochs)

    def pulled(epoch: float, count: float) -> float:
        """Rows of a rank in ``count`` steps of an epoch."""
        done = epoch * per_epoch
        return hops.pulled(done + count, capacity) - hops.pulled(done, capacity)

    first, last = pulled(0, steps) / steps, epochs - 1
    later = (
        (hops.pulled(epochs * per_epoch, capacity) - hops.pulled(per_epoch, capacity)) / last / per_epoch
        if last
        else first
    )
    asking = QUESTION * hops.asked + ANSWER * hops.answered
    gradients = 2 * (setting.world - 1) / setting.world * 4 * setting.parameters if machines > 1 else 0.0

    def step(rows: float) -> float:
        """Bytes that a machine sends in a step."""
        return trainers * (rows * (row + QUESTION) + asking) + gradients

    everything = setting.world * (
        hops.pulled(epochs * per_epoch, capacity) * (row + QUESTION) + epochs * per_epoch * asking
    )
    everything += machines * gradients * steps * epochs + setting.world * hops.travelled
    everything += _evaluation(setting, hops) + MAP * setting.nodes * (machines - 1) / machines
    busy, wire, exchange = _step(setting, speed, later, asking, gradients)
    parts = _epoch(setting, speed, busy, wire, exchange)
    bytes_step = step(later) - gradients
    server, trainer, machine, together = _memory(setting, hops, capacity)
    return Estimate(
        setting, hops, speed, server, trainer, machine, together, hops.remote, first, later, step(later),
        machines * (steps * step(later) + setting.validating * bytes_step), everything if machines > 1 else 0.0, parts,
        sum(_epoch(setting, speed, *_step(setting, speed, first, asking, gradients)).values()),
        8 * bytes_step / EFFICIENCY / busy if machines > 1 and bytes_step else None,
    )  # fmt: skip


def _step(setting: Setting, speed: Speed, rows: float, asking: float, gradients: float) -> tuple[float, float, float]:
    """Seconds of a step: what keeps the processor busy, rows on the wire, gradients on it."""
    count = setting.trainers * (rows * (STORED * setting.width + QUESTION) + asking)
    rate = (setting.wire or UNSHAPED) * EFFICIENCY / 8
    copying = count / setting.trainers / COPIED
    busy = (speed.computing + speed.fetching + copying) * setting.crowding
    waits = LATENCY * len(setting.config.fanouts) if count else 0.0
    exchange = gradients / rate + (2 * LATENCY * math.log2(setting.machines) if gradients else 0.0)
    return busy, count / rate + waits, exchange


def _epoch(setting: Setting, speed: Speed, busy: float, wire: float, exchange: float) -> dict[str, float]:
    """Seconds of an epoch by part; the first batch of an epoch is awaited, others are made ahead."""
    steps, computing = setting.steps, speed.computing * setting.crowding
    ahead = setting.config.loader != "dgl" and setting.config.ahead > 0
    hidden = min(wire, busy) * (steps - 1) if ahead else 0.0
    return {
        "computing": computing * steps,
        "drawing and reading": (busy - computing) * steps,
        "the wire, not hidden": wire * steps - hidden,
        "gradients": exchange * steps,
        "waiting": WAITING * computing * steps if setting.world > 1 else 0.0,
    }


def _evaluation(setting: Setting, hops: Hops) -> float:
    """Bytes on the wire for the exact evaluation: a layer's rows of other machines, as far as they can be kept."""
    config, own = setting.config, setting.nodes / setting.world
    batches = math.ceil(own / config.eval_batch_size)
    asked, halo, total = batches * hops.evaluated, hops.halo * setting.trainers**-SHARED, 0.0
    for width in setting.sizes[:-1]:
        kept = config.cache / (STORED * width) if setting.keeps else 0.0
        share = min(1.0, kept / halo) if halo else 1.0
        rows = min(asked, share * halo + asked * (1 - share) ** 1.5)  # as rows of batches, with a = 2
        total += setting.world * rows * (STORED * width + QUESTION)
    return total


def _memory(setting: Setting, hops: Hops, capacity: float) -> tuple[float, float, float, float]:
    """Bytes at their largest: of a server, of a trainer, of the largest machine, of all machines on one computer."""
    config, sizes = setting.config, setting.sizes
    nodes, part = setting.nodes / setting.machines * hops.part, setting.edges / setting.machines * hops.part_edges
    edges = part * (1 + hops.cut)  # those that leave a part are there, too
    features = STORED * setting.width * nodes
    stores = STORED * nodes * max((a + b for a, b in pairwise(sizes[1:])), default=sizes[-1])  # two layers' at a time
    server = SERVER + SERVER_EDGE * edges + SERVER_NODE * nodes + features + stores
    full = min(config.batch_size, setting.train / setting.world) / hops.sizes[0]
    reached = [min(size * full**0.9, setting.nodes) for size in hops.sizes]
    hidden = HIDDEN * sum(STORED * rows * width for rows, width in zip(reversed(reached), sizes[1:], strict=True))
    inputs = STORED * 2 * setting.width * reached[-1] * (2 + config.ahead)
    seen = min(capacity, hops.seen(config.epochs * (setting.steps + setting.validating)))
    evaluated = STORED * config.hidden_size * min(hops.halo, config.cache / STORED / config.hidden_size)
    mapped = (
        features / setting.trainers + 4 * edges + 1.5 * stores / setting.trainers
    )  # the servers' memory, in a trainer
    own = TRAINER + (TRAINER_EDGE - 4) * edges + PIECE_EDGE * min(edges, PIECES) + EVERY_NODE * setting.nodes
    own += hidden + inputs + 2 * hops.lists + STORED * setting.width * seen + (evaluated if len(sizes) > 2 else 0.0)
    machine = server + (setting.servers - 1) * (SERVER - LIBRARIES) + setting.trainers * (own - LIBRARIES)
    return server, own + mapped, machine, COMMAND + setting.machines * machine
