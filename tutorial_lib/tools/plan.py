"""Estimates of the memory, the traffic and the time of a job, from a few numbers of its graph.

The constants were fitted to runs of ``train`` on synthetic-products with two cores. ``benchmarks/plan.py`` compares
estimates with measurements, and benchmarks/RESULTS.md has the table.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist

from tutorial_lib.cluster.emulated import parse_wire
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig

# Bytes: of a process without a graph, of each edge and node of a part, and shared by two processes of a machine.
SERVER, SERVER_NODE, FORKED, LIBRARIES, COMMAND = 0.41e9, 24, 0.35e9, 0.13e9, 0.45e9
SERVER_EDGE = {"dgl": (43, 21), "graphbolt": (20, 15)}  # by format of the part; the second only while it is loaded
TRAINER, TRAINER_EDGE, TRAINER_NODE, HIDDEN, EVALUATED = 0.50e9, 8, 8, 9, 1.2
CONVERTED = 8.4e6, 16  # edges that a trainer converts at once, and bytes of each
ROW_ID, NEIGHBOR, PREDICTION = 8, 24, 16  # bytes on the link for a requested row, a neighbor and a prediction
UNSHAPED, EFFICIENCY, LATENCY = 8e9, 0.8, 0.3e-3  # bits per second without --wire, usable share, seconds
COPIED, REQUEST, REQUESTED = 330e6, 3.5e-3, 1.5e-3  # bytes a core copies in a second; seconds of a request, per machine
FLOPS, MOVED, READ, SAMPLED = 70e9, 2.85e9, 7e9, 12e6  # of a core in a second: arithmetic, bytes, bytes, edges
THREADS, WAITING = 0.85, 0.04  # speed of a further thread, waiting as a share of the computing
CUT, CUT_GROWTH = 0.045, 1.37  # share of edges cut in two parts, and the power of log2(parts)
SPREAD, FRESH, QUANTILES = 1.18, 0.85, 24  # standard deviation of log degrees, sampled neighbors that are new
PUBLISHED = {
    "ogbn-products": {"nodes": 2_449_029, "edges": 123_718_280, "width": 100, "classes": 47}
    | {"train": 196_615, "val": 39_323},
    "ogbn-arxiv": {"nodes": 169_343, "edges": 2_315_598, "width": 128, "classes": 40}
    | {"train": 90_941, "val": 29_799},
}


@dataclass(frozen=True)
class Job:
    """A training job on a graph with one type of nodes, on CPUs.

    Attributes:
        nodes, edges: of the graph, with both directions of an edge.
        width, classes: features of a node, and number of classes.
        train, val: numbers of training and validation nodes.
        machines, trainers, servers: number of machines, and of trainers and servers on each.
        wire: bandwidth of a machine in bits per second, or None without a limit.
        together: whether all machines share this computer, its memory and its cores.
        cores, memory: cores and bytes of a machine, or of the shared computer.
        cut: share of the edges between parts, or None for the cut that METIS finds on graphs like ours.
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
    cut: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "width", "classes", "machines", "trainers", "servers"):
            if not 1 <= (value := getattr(self, name)) <= 10**13:
                raise InputError(f"{name} {str(value)[:30]}: plan accepts 1 to {10**13}")
        if self.train < 1:
            raise InputError("no training nodes: nothing would be learned", "Give --train-nodes, or mark some.")
        if self.val < 0 or self.train + self.val > self.nodes:
            raise InputError(f"{self.train:,} training and {self.val:,} validation nodes of {self.nodes:,} in all")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.machines * self.trainers

    @property
    def steps(self) -> int:
        """Steps of a rank in an epoch."""
        return math.ceil(self.train / self.world / self.config.batch_size)


@dataclass(frozen=True)
class Estimate:
    """The estimated needs of a job.

    Attributes:
        server, trainer, machine, total: bytes of memory of a process, of a machine, and of all machines together.
        input_rows, remote_rows: input rows of a rank's step, and the part of them that other machines store.
        first, later: remote rows that a step fetches in the first epoch and in a later epoch.
        epoch_bytes, job_bytes: bytes that all machines send in a later epoch and in the whole job.
        seconds: of a later epoch, by part.
        first_epoch: seconds of the first epoch.
        cache: bytes of ``--cache`` that hold everything a trainer reads from other machines.
    """

    server: float
    trainer: float
    machine: float
    total: float
    input_rows: float
    remote_rows: float
    first: float
    later: float
    epoch_bytes: float
    job_bytes: float
    seconds: dict[str, float]
    first_epoch: float
    cache: float

    @property
    def epoch(self) -> float:
        """Seconds of a later epoch."""
        return sum(self.seconds.values())


def estimate(job: Job) -> Estimate:
    """Return the estimated needs of a job."""
    config, n, degree, far = job.config, job.nodes, job.edges / job.nodes, job.nodes * (1 - 1 / job.machines)
    raw = [math.exp(SPREAD * NormalDist().inv_cdf((k + 0.5) / QUANTILES)) for k in range(QUANTILES)]
    share = [one / sum(raw) for one in raw]  # of the edges, by degree
    cut = min(1 - 1 / job.machines, CUT * math.log2(job.machines) ** CUT_GROWTH) if job.machines > 1 else 0.0
    cut = cut if job.cut is None else job.cut

    def distinct(draws: float, among: float) -> float:
        return sum(among / QUANTILES * -math.expm1(-draws * s * QUANTILES / among) for s in share) if among else 0.0

    # Sampling: rows and edges of each hop, seeds first.
    rows, sizes, edges, remote, asked = job.train / job.world / job.steps, [], [], 0.0, 0.0
    for hop, fanout in enumerate(reversed(config.fanouts)):
        weights = [1 / QUANTILES] * QUANTILES if hop == 0 else share
        degrees = [max(1.0, s * degree * QUANTILES) for s in share]
        each = sum(w * (d if fanout < 0 else min(fanout, d)) for w, d in zip(weights, degrees, strict=True))
        sizes.append(rows)
        edges.append(min(rows * each, job.edges))
        asked += distinct(remote, far)
        remote += edges[-1] * (1 - (1 - cut) ** (hop + 1))
        rows = min(n, sizes[0] + distinct(FRESH * sum(edges), n))
    needed = min(distinct(remote, far), rows)

    # The cache: half of it holds adjacency, the rest holds feature rows.
    row, keeps = 4 * job.width, config.loader != "dgl" and config.cache > 0
    part = job.edges / job.machines
    halo = distinct(cut * part, far)
    adjacency = 4 * degree * min(far, 2 * halo if len(config.fanouts) > 2 else halo) if len(config.fanouts) > 1 else 0
    kept = min(adjacency, config.cache / 2) if keeps else 0.0
    room = max(0.0, config.cache - kept) / row if keeps else 0.0
    asked *= 1 - kept / adjacency if adjacency else 1.0
    questions = ROW_ID * asked + NEIGHBOR * asked * edges[-1] / sizes[-1]
    per_epoch = job.steps * (1 + job.val / job.train)
    epochs = max(1, config.epochs)

    def fetched(steps: float) -> float:
        """Rows fetched in the first steps: each row once until the cache is full, then all that do not fit."""
        seen = distinct(steps * remote, far)
        return seen if seen <= room else max(seen, room + (steps * needed - room) * (1 - room / far) ** 1.5)

    first = fetched(job.steps) / job.steps
    later = (fetched(epochs * per_epoch) - fetched(per_epoch)) / (epochs - 1) / per_epoch if epochs > 1 else first
    gradients = 8 * (job.world - 1) / job.world * _parameters(job) if job.machines > 1 else 0.0
    layers = [*[config.hidden_size] * (len(config.fanouts) - 1), job.classes]  # stored by the exact evaluation
    batches = math.ceil(n / job.world / config.eval_batch_size)
    asked_rows, evaluation = batches * min(distinct(cut * config.eval_batch_size * degree, far), halo), 0.0
    for width in [job.width, *layers[:-1]]:
        fits = min(1.0, config.cache / (4 * width) / halo) if keeps and halo else 0.0
        evaluation += job.world * (4 * width + ROW_ID) * min(asked_rows, fits * halo + (1 - fits) ** 1.5 * asked_rows)
    sent = job.world * per_epoch * (later * (row + ROW_ID) + questions) + job.machines * job.steps * gradients
    total = job.world * (fetched(epochs * per_epoch) * (row + ROW_ID) + epochs * per_epoch * questions)
    total += job.machines * (gradients * job.steps * epochs + kept) + evaluation + PREDICTION * far
    seconds, first_epoch = (_seconds(job, sizes, edges, r, questions, gradients) for r in (later, first))

    # Memory at its largest: a server while it loads its part, a trainer while it trains or evaluates.
    stored = part * (1 + cut) * 1.05
    features, outputs = (
        row * n / job.machines * 1.05,
        4 * n / job.machines * 1.05 * max(map(sum, pairwise(layers)), default=job.classes),
    )
    each, loading = SERVER_EDGE["graphbolt" if config.in_pipeline() else "dgl"]
    loaded = SERVER + each * stored + SERVER_NODE * n / job.machines + features
    trained = sum(4 * HIDDEN * size * width for size, width in zip(reversed(sizes), layers, strict=True))
    trained += 8 * job.width * sizes[-1] * (2 + config.ahead)
    evaluated = EVALUATED * 4 * config.hidden_size * min(n, config.eval_batch_size * (1 + degree))
    cached = row * min(room, distinct(epochs * per_epoch * remote, far))
    base = (
        TRAINER
        + TRAINER_EDGE * stored
        + CONVERTED[1] * min(stored, CONVERTED[0])
        + TRAINER_NODE * n
        + 2 * kept
        + cached
    )
    machine = loaded - loading * stored - FORKED + (job.servers - 1) * (SERVER - LIBRARIES)
    machine += job.trainers * (base + max(trained, evaluated + outputs / job.trainers) - LIBRARIES)
    machine = max(machine, loaded)
    trainer = base + max(trained, evaluated) + (features + 1.5 * outputs) / job.trainers + 4 * stored
    return Estimate(
        loaded + outputs, trainer, machine,
        COMMAND + job.machines * machine, rows, needed, first, later, sent if job.machines > 1 else 0.0,
        total if job.machines > 1 else 0.0, seconds, sum(first_epoch.values()), row * far + 2 * adjacency,
    )  # fmt: skip


def _parameters(job: Job) -> int:
    sizes = [job.width, *[job.config.hidden_size] * (len(job.config.fanouts) - 1), job.classes]
    return sum(2 * a * b + b for a, b in pairwise(sizes))


def _seconds(
    job: Job, sizes: list[float], edges: list[float], fetched: float, questions: float, gradients: float
) -> dict[str, float]:
    """Return the seconds of an epoch by part. Batches are prepared while others are computed."""
    config, hops = job.config, len(job.config.fanouts)
    crowd = job.trainers * (job.machines if job.together else 1)
    threads, crowding = 1 + THREADS * (max(1, job.cores // crowd) - 1), max(1.0, crowd / job.cores)
    widths = list(pairwise([job.width, *[config.hidden_size] * (hops - 1), job.classes]))
    layers = list(zip(widths, reversed(sizes), strict=True))
    flops = sum((2 if depth == 0 else 3) * 4 * rows * a * b for depth, ((a, b), rows) in enumerate(layers))
    computing = (flops / FLOPS + sum(4 * rows * b for (_, b), rows in layers) / MOVED) / threads * crowding
    sampling = sum(edges) / SAMPLED + 4 * job.width * edges[-1] / READ
    remote = (fetched * (4 * job.width + ROW_ID) + questions) if job.machines > 1 else 0.0
    if remote:
        sampling += remote / COPIED + (hops + 1) * (REQUEST + REQUESTED * (job.machines - 1))
    sampling *= crowding
    rate = (job.wire or UNSHAPED) * EFFICIENCY / 8
    link = job.trainers * remote / rate + (LATENCY * hops if remote else 0.0)
    hidden = min(link, computing + sampling) * (job.steps - 1) if config.loader != "dgl" and config.ahead else 0.0
    exchange = gradients / rate + (2 * LATENCY * math.log2(job.machines) if gradients else 0.0)
    return {
        "computing": computing * job.steps,
        "sampling and reading rows": sampling * job.steps,
        "link, not hidden": link * job.steps - hidden,
        "gradients": exchange * job.steps,
        "waiting for other ranks": WAITING * computing * job.steps if job.world > 1 else 0.0,
    }


def sizes_of(source: DataSource) -> dict[str, int]:
    """Return ``nodes`` to ``val`` of a ``Job``. Data sets of unknown size are loaded."""
    source.check()
    if source.name == "synthetic-products":  # imitates the other at any size, split included
        whole = PUBLISHED["ogbn-products"]
        return whole | {name: round(source.scale * whole[name]) for name in ("nodes", "edges", "train", "val")}
    if source.name in PUBLISHED:
        return PUBLISHED[source.name]
    dataset = source.load()
    if dataset.is_heterogeneous or not dataset.num_features or not dataset.num_classes:
        raise InputError(f"{source.name}: plan needs a graph with features, labels and one type of nodes")
    split, graph = dataset.split_counts(), dataset.structure
    counts = {"nodes": graph.num_nodes(), "edges": graph.num_edges()}
    counts |= {"width": dataset.num_features, "classes": dataset.num_classes}
    return {**counts, "train": split["train_mask"], "val": split["val_mask"]}


def sizes_of_partition(partition: Partition) -> dict[str, float]:
    """Return ``nodes`` to ``val`` and ``cut`` of a ``Job``. Validation nodes are a fifth of the training nodes."""
    facts, report = partition.manifest["dataset"], partition.report
    if partition.types or not facts["num_features"] or not facts["num_classes"]:
        raise InputError(f"{partition.folder}: plan needs a graph with features, labels and one type of nodes")
    nodes, train = sum(report.nodes), sum(report.train_nodes)
    counts = {"nodes": nodes, "edges": sum(report.edges), "train": train, "val": min(train // 5, nodes - train)}
    return {**counts, "width": facts["num_features"], "classes": facts["num_classes"], "cut": report.edge_cut_share}


def job_of(sizes: dict[str, int], layout: Layout, machines: int, config: TrainConfig) -> Job:
    """Return a job on the machines of a layout. Each has the cores of this computer."""
    wire = parse_wire(layout.wire)
    return Job(
        **sizes, machines=machines, trainers=layout.trainers, servers=layout.servers, config=config,
        wire=8.0 * wire if wire else None, together=not layout.elsewhere, cores=len(os.sched_getaffinity(0)),
    )  # fmt: skip


def check_fits(job: Job, found: Estimate) -> None:
    """Raise an InputError with a remedy if the job needs more memory than there is."""
    if (needed := found.total if job.together else found.machine) <= job.memory:
        return
    counts = [2**k for k in range(9) if 2**k > (1 if job.together else job.machines)]
    own = [k for k in counts if estimate(replace(job, machines=k, together=False, cut=None)).machine <= job.memory]
    remedy = "Reduce --batch-size, --fanouts or --cache" + (
        f", or use {own[0]} computers with as much memory each." if own else "."
    )
    where = "all machines of this computer need" if job.together else "a machine needs"
    have = f"{human_bytes(round(needed))} of memory, and there are {human_bytes(round(job.memory))}"
    raise InputError(f"this does not fit: {where} about {have}", remedy)
