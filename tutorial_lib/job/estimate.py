"""What a job will need, from what a step reaches: memory, bytes on the wire, seconds. Arithmetic, and no more.

Constants were fitted to runs of ``train`` on synthetic-products, on two cores. ``benchmarks/plan.py`` compares with
other runs, and benchmarks/RESULTS.md has its table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tutorial_lib.job.reach import ASSUMED, Hops, Setting, assumed_hops
from tutorial_lib.trainer.config import TrainConfig

# Bytes: a process without a graph; of each edge and node of its part; and what two processes of a machine share.
SERVER, SERVER_NODE, LIBRARIES = 0.41e9, 24, 0.13e9
SERVER_EDGES = {"dgl": (43, 21), "graphbolt": (20, 15)}  # by format of the part; of them, only while it is loaded
FORKED = 0.35e9  # in common with the process that forks them
TRAINER, TRAINER_EDGE, EVERY_NODE = 0.50e9, 12, 8
PIECES, PIECE_EDGE = 8.4e6, 16  # edges that a trainer converts at a time, and bytes for each of them
EVALUATED = 1.2  # times the rows of a hidden layer that a batch of the evaluation reaches
HIDDEN = 9  # times the rows that the layers put out: their gradients, dropout, what the optimiser needs
STORED = 4  # bytes of a float32
COMMAND = 0.45e9  # bytes: the command itself, and an agent for each machine
QUESTION, ANSWER, MAP = 8, 24, 16  # bytes on the wire: a node that is asked for; a neighbour; a node's prediction
SHARED = 0.35  # trainers of a machine need the same remote rows: each that power of their number less
UNSHAPED = 8e9  # bits per second between emulated machines without --wire
EFFICIENCY, LATENCY = 0.8, 0.3e-3  # of a wire; seconds until an answer comes
COPIED = 330e6  # bytes that a core sends and takes in a second
REQUEST = (3.5e-3, 1.5e-3)  # seconds of a core, for a question to other machines and for each that it goes to
HELD_FIRST = (1.1e-9, 0.25e-9)  # seconds of a core for a byte of memory that is new to a trainer: epoch 1, epoch 2
# Of one core, in a second: additions and multiplications; bytes that layers put out; bytes of rows read; edges drawn.
FLOPS, MOVED, READ, DRAWN = 70e9, 2.85e9, 7e9, 12e6
THREADS = 0.85  # what each further thread of a trainer adds
WAITING = 0.04  # of the computing: ranks are never equally fast


@dataclass(frozen=True)
class Speed:
    """Seconds of a step of one trainer that has its threads for itself: computing; drawing and reading rows."""

    computing: float
    fetching: float
    source: str = ASSUMED


def assumed_speed(setting: Setting, hops: Hops) -> Speed:
    """From constants: one core of the computer on which they were measured, times this trainer's threads."""
    layers = list(zip(pairwise(setting.sizes), reversed(hops.sizes), strict=True))
    # Of a step, forward and backward: multiplications and additions, and bytes of what the layers put out.
    flops = sum((2 if depth == 0 else 3) * 4 * rows * a * b for depth, ((a, b), rows) in enumerate(layers))
    moved = sum(4 * rows * b for (_, b), rows in layers)
    threads = 1 + THREADS * (setting.threads - 1)
    fetching = sum(hops.edges) / DRAWN + 4 * setting.width * hops.edges[-1] / READ
    return Speed((flops / FLOPS + moved / MOVED) / threads, fetching)


@dataclass(frozen=True)
class Estimate:
    """What a job will need.

    Attributes:
        server, trainer, machine, all: bytes: of a process, of the largest machine, of this computer with all machines.
        rows: remote rows of a step; first, later: of them, what is pulled in a step of the first and of a later epoch.
        step: bytes that a machine sends in a step of a later epoch, gradients included; sent: of all in an epoch.
        job: bytes that all machines send, start and evaluation included.
        seconds: of a later epoch, by part; first_epoch: in sum, of the first.
        enough: bits per second of a wire that the computing hides; None: there is nothing to hide, or it cannot be.
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
    def kept(self) -> float:
        """The part of the remote rows for which a trainer has room."""
        return min(1.0, capacity_of(self.setting, self.hops) / self.hops.pool) if self.hops.pool else 1.0

    @property
    def needed(self) -> float:
        """Bytes of memory where they are compared with what there is: all machines together, or the largest."""
        return self.all if self.setting.together else self.machine

    @property
    def fits(self) -> bool:
        """Whether there is as much memory."""
        return self.needed <= self.setting.memory


def capacity_of(setting: Setting, hops: Hops) -> float:
    """Remote rows for which a trainer has room; where all of a machine have room for every one, they share them."""
    room = setting.trainers * setting.config.cache - hops.lists if setting.keeps else 0.0
    rows = max(0.0, room / (STORED * setting.width))
    return rows if rows >= hops.pool else rows / setting.trainers


def estimate(setting: Setting, hops: Hops | None = None, speed: Speed | None = None) -> Estimate:
    """Arithmetic on what a step reaches and how long it takes; both are assumed where they are not given."""
    hops = hops or assumed_hops(setting)
    speed = speed or assumed_speed(setting, hops)
    config, machines, trainers, steps = setting.config, setting.machines, setting.trainers, setting.steps
    row = STORED * setting.width
    capacity = capacity_of(setting, hops)
    per_epoch = steps + setting.validating
    epochs = max(1, config.epochs)

    def pulled(count: float) -> float:
        """Rows of a rank in its first ``count`` steps."""
        alone = hops.pulled(count, capacity)
        if trainers == 1 or capacity < hops.pool:
            return alone
        # Those that share them ask for many of the same at the same time: about half of what could be saved is.
        return (alone + hops.pulled(trainers * count, capacity) / trainers) / 2

    first, last = pulled(steps) / steps, epochs - 1
    every = pulled(epochs * per_epoch)
    later = (every - pulled(per_epoch)) / last / per_epoch if last else first
    asking = QUESTION * hops.asked + ANSWER * hops.answered
    gradients = 2 * (setting.world - 1) / setting.world * 4 * setting.parameters if machines > 1 else 0.0

    def step(rows: float) -> float:
        """Bytes that a machine sends in a step."""
        return trainers * (rows * (row + QUESTION) + asking) + gradients

    everything = setting.world * (every * (row + QUESTION) + epochs * per_epoch * asking)
    everything += machines * (gradients * steps * epochs + hops.travelled)
    everything += _evaluation(setting, hops) + MAP * setting.nodes * (machines - 1) / machines
    busy, wire, exchange = _step(setting, speed, later, asking, gradients)
    parts = _epoch(setting, speed, busy, wire, exchange)
    bytes_step = step(later) - gradients
    server, trainer, machine, together, held = _memory(setting, hops, capacity)
    fresh = held * setting.crowding
    parts["memory held first"] = HELD_FIRST[1] * fresh / last if last else 0.0
    return Estimate(
        setting, hops, speed, server, trainer, machine, together, hops.remote, first, later, step(later),
        machines * (steps * step(later) + setting.validating * bytes_step), everything if machines > 1 else 0.0, parts,
        sum(_epoch(setting, speed, *_step(setting, speed, first, asking, gradients)).values()) + HELD_FIRST[0] * fresh,
        8 * bytes_step / EFFICIENCY / busy if machines > 1 and bytes_step and setting.hides else None,
    )  # fmt: skip


def fitting_cache(setting: Setting) -> int:
    """Bytes of ``TrainConfig.cache``: the default, doubled until what is remote fits or memory does not suffice.

    All trainers together get at most half of what the job leaves free. Where machines do not share this computer, their
    memory is not known, and it is the default. Doubled, because each amount draws other batches: lists of neighbours
    are in it, too.
    """

    def having(cache: int) -> Setting:
        return replace(setting, config=replace(setting.config, cache=cache))

    size = TrainConfig.cache
    if not setting.keeps or not setting.together:
        return size
    limit = (setting.memory - estimate(having(0)).needed) / 2 / setting.world
    everything = assumed_hops(having(2 * STORED * setting.edges))  # as many lists as there are
    wanted = STORED * setting.width * everything.pool + 2 * everything.lists
    while setting.trainers * size < wanted and 2 * size <= limit:
        size *= 2
    return size


def _step(setting: Setting, speed: Speed, rows: float, asking: float, gradients: float) -> tuple[float, float, float]:
    """Seconds of a step: what keeps the processor busy, rows on the wire, gradients on it."""
    count = setting.trainers * (rows * (STORED * setting.width + QUESTION) + asking)
    rate = (setting.wire or UNSHAPED) * EFFICIENCY / 8
    copying = count / setting.trainers / COPIED
    # Fitted per hop and for the rows, whether or not a cache has the answer.
    requests = (len(setting.config.fanouts) + 1) * (REQUEST[0] + REQUEST[1] * (setting.machines - 1)) if count else 0.0
    busy = (speed.computing + speed.fetching + copying + requests) * setting.crowding
    waits = LATENCY * len(setting.config.fanouts) if count else 0.0
    exchange = gradients / rate + (2 * LATENCY * math.log2(setting.machines) if gradients else 0.0)
    return busy, count / rate + waits, exchange


def _epoch(setting: Setting, speed: Speed, busy: float, wire: float, exchange: float) -> dict[str, float]:
    """Seconds of an epoch by part; the first batch of an epoch is awaited, others are made ahead."""
    steps, computing = setting.steps, speed.computing * setting.crowding
    hidden = min(wire, busy) * (steps - 1) if setting.hides else 0.0
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
    for width in setting.stored[:-1]:
        kept = config.cache / (STORED * width) if setting.keeps else 0.0
        share = min(1.0, kept / halo) if halo else 1.0
        rows = min(asked, share * halo + asked * (1 - share) ** 1.5)  # as rows of batches, with a = 2
        total += setting.world * rows * (STORED * width + QUESTION)
    return total


def _memory(setting: Setting, hops: Hops, capacity: float) -> tuple[float, float, float, float, float]:
    """Bytes at their largest: of a server, of a trainer, of the largest machine, of all machines on one computer.

    And what a trainer has not held before it trains.
    """
    config, sizes = setting.config, setting.sizes
    nodes, part = setting.nodes / setting.machines * hops.part, setting.edges / setting.machines * hops.part_edges
    edges = part * (1 + hops.cut)  # those that leave a part are there, too
    features = STORED * setting.width * nodes
    stores = STORED * nodes * max((a + b for a, b in pairwise(setting.stored[1:])), default=sizes[-1])  # two at a time
    each, loading = SERVER_EDGES["graphbolt" if config.in_pipeline() else "dgl"]
    loaded = SERVER + each * edges + SERVER_NODE * nodes + features
    full = min(config.batch_size, setting.train / setting.world) / hops.sizes[0]
    reached = [min(size * full**0.9, setting.nodes) for size in hops.sizes]
    hidden = HIDDEN * sum(STORED * rows * width for rows, width in zip(reversed(reached), sizes[1:], strict=True))
    inputs = STORED * 2 * setting.width * reached[-1] * (2 + config.ahead)
    seen = min(capacity, hops.seen(config.epochs * (setting.steps + setting.validating)))
    evaluated = STORED * config.hidden_size * min(hops.halo, config.cache / STORED / config.hidden_size)
    batch = min(setting.nodes, config.eval_batch_size * (1 + setting.edges / setting.nodes))
    evaluated += EVALUATED * STORED * config.hidden_size * batch
    mapped = features / setting.trainers + 4 * edges + 1.5 * stores / setting.trainers  # the servers', in a trainer
    own = TRAINER + (TRAINER_EDGE - 4) * edges + PIECE_EDGE * min(edges, PIECES) + EVERY_NODE * setting.nodes
    own += 2 * hops.lists + STORED * setting.width * seen
    fresh = own + hidden + inputs - TRAINER
    trained, evaluated = hidden + inputs, evaluated if len(sizes) > 2 else 0.0  # one is given back before the other
    trainer = own + max(trained, evaluated) + mapped
    own += max(trained, evaluated + stores / setting.trainers)
    machine = loaded - loading * edges - FORKED
    machine += (setting.servers - 1) * (SERVER - LIBRARIES) + setting.trainers * (own - LIBRARIES)
    machine -= (setting.trainers - 1) * (4 * edges + 2 * hops.lists)  # what they share
    if setting.trainers > 1 and capacity >= hops.pool:
        together = hops.seen(setting.trainers * config.epochs * (setting.steps + setting.validating))
        machine -= STORED * setting.width * (setting.trainers * seen - min(capacity, together))
    machine = max(machine, loaded)
    return loaded + stores, trainer, machine, COMMAND + setting.machines * machine, fresh
