"""Estimate the memory, the traffic and the time of a training job from a few numbers of its graph.

The constants were fitted to runs of ``train`` on synthetic-products with two cores. ``benchmarks/plan.py`` compares
estimates with measurements, and benchmarks/RESULTS.md has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from tutorial_lib.data.memory import memory_for_us
from tutorial_lib.errors import InputError
from tutorial_lib.files import parse_memory
from tutorial_lib.job.display import human_bytes
from tutorial_lib.job.parts import check_parts
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends.emulated import parse_wire
from tutorial_lib.partition import Partition, dataset_description
from tutorial_lib.trainer.config import TrainConfig

# Bytes of each process without a graph, and of the pages that all processes of a machine share.
SERVER, TRAINER, COMMAND, SHARED = 0.44e9, 0.46e9, 0.45e9, 0.42e9
# By loader: bytes per edge of a part in a server while it loads and afterwards, and per sampled neighbor on the link.
SERVER_EDGE, NEIGHBOR = {"dgl": (43, 22), "pipeline": (20, 5)}, {"dgl": 24, "pipeline": 5}
TRAINER_EDGE, TRAINER_NODE, ROW_ID = 12, 8, 8
HIDDEN, EVALUATED = 12, 1.2  # copies of the hidden rows of a batch in training and in the evaluation
NUMBERED, WRITTEN = 21, 42  # bytes per edge of the graph and of one part while a graph is partitioned
UNSHAPED, EFFICIENCY = 8e9, 0.8  # bits per second without --wire, usable share
COPIED, REQUEST, REQUESTED = 330e6, 3.5e-3, 1.5e-3  # bytes a core copies per second, seconds per request and machine
FLOPS, MOVED, READ, SAMPLED = 70e9, 2.85e9, 7e9, 12e6  # of a core per second: operations, bytes, bytes, edges
THREADS = 0.85  # speed of a further thread
CUT, CUT_GROWTH, TRAIN_SHARE = 0.038, 1.1, 0.1  # assumed: edges cut in two parts, power of log2(parts), training nodes
FRESH, MISSES = 0.85, 4  # share of sampled neighbors that are new, power of the share of rows that are not cached
QUANTILES = [math.exp(1.18 * NormalDist().inv_cdf((k + 0.5) / 24)) for k in range(24)]
DEGREES = [one * 24 / sum(QUANTILES) for one in QUANTILES]  # of the nodes of ogbn-products, the mean is 1
Graph = DataSource | Partition | dict[str, Any]
SIZES = ("nodes", "edges", "width", "classes", "train", "val")
PUBLISHED = {
    "ogbn-products": dict(zip(SIZES, (2_449_029, 123_718_280, 100, 47, 196_615, 39_323), strict=True)),
    "ogbn-arxiv": dict(zip(SIZES, (169_343, 2_315_598, 128, 40, 90_941, 29_799), strict=True)),
}


@dataclass(frozen=True)
class Job:
    """A job that trains GraphSAGE on a graph with one type of nodes, on CPUs."""

    nodes: int
    edges: int  # both directions of an edge count
    width: int  # features of a node
    classes: int
    train: int  # training nodes
    val: int  # validation nodes
    machines: int = 2
    trainers: int = 1  # on each machine
    servers: int = 1  # on each machine
    config: TrainConfig = field(default_factory=TrainConfig)
    wire: float | None = None  # bits per second of each machine, or None for no limit
    together: bool = True  # all machines share this computer, its memory and its cores
    cores: int = 1  # of a machine, or of the shared computer
    memory: float = math.inf  # bytes of a machine, or of the shared computer
    cut: float | None = None  # share of the edges between parts, or None to assume one
    assumed: tuple[str, ...] = ()  # sentences about other numbers that are assumed

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "width", "classes", "train", "machines", "trainers", "servers", "cores"):
            if not 1 <= getattr(self, name) <= 10**13:
                raise InputError(f"{name} {str(getattr(self, name))[:30]}: plan accepts 1 to {10**13}")
        if self.val < 0 or self.train + self.val > self.nodes:
            raise InputError(f"{self.train:,} training and {self.val:,} validation nodes of {self.nodes:,} in all")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.machines * self.trainers

    @property
    def steps(self) -> int:
        """Training steps of a rank in an epoch."""
        return math.ceil(self.train / self.world / self.config.batch_size)


@dataclass(frozen=True)
class Estimate:
    """The estimated needs of a job: memory and traffic in bytes, rows of a step of a rank, and seconds.

    Rows, traffic and seconds are means over the epochs of the job. The first epoch has an empty cache and takes longer.
    """

    server: float  # memory of each process
    trainer: float
    machine: float  # counts memory that its processes share once
    total: float  # of all machines and of the command that starts the job
    partition: float  # of the process that partitions the graph
    cut: float  # share of the edges between parts, given or as KaMinPar cuts synthetic-products
    input_rows: float
    remote_rows: float  # input rows that other machines store
    fetched_rows: float  # remote rows that the cache does not have
    epoch_bytes: float  # sent by all machines
    job_bytes: float  # with the exact evaluation
    seconds: dict[str, float]  # of an epoch, by part
    cache: float  # bytes of --cache for everything that a trainer reads from other machines

    @property
    def epoch(self) -> float:
        """Seconds of an epoch."""
        return sum(self.seconds.values())


def distinct(draws: float, among: float) -> float:
    """Return how many of ``among`` nodes are drawn at least once, if they are drawn in proportion to their degree."""
    return sum(-math.expm1(-draws / among * one) for one in DEGREES) * among / 24 if among else 0.0


def estimate(job: Job) -> Estimate:
    """Return the estimated needs of a job."""
    config, n, row, world = job.config, job.nodes, 4 * job.width, job.world
    loader = "pipeline" if config.in_pipeline() else "dgl"
    hops, degree, far = len(config.fanouts), job.edges / n, n * (1 - 1 / job.machines)
    cut = min(1 - 1 / job.machines, CUT * math.log2(job.machines) ** CUT_GROWTH) if job.cut is None else job.cut
    widths = [job.width, *[config.hidden_size] * (hops - 1), job.classes]

    # A batch: nodes and sampled edges of each hop, and remote nodes among them. Later hops find nodes of high degree.
    nodes, edges, drawn, asked = [job.train / world / job.steps], list[float](), 0.0, 0.0
    for hop, fanout in enumerate(reversed(config.fanouts)):
        found = [max(1.0, degree * one) if fanout < 0 else max(1.0, min(fanout, degree * one)) for one in DEGREES]
        mean = sum(one * (weight if hop else 1) for one, weight in zip(found, DEGREES, strict=True)) / 24
        edges.append(min(nodes[-1] * mean, job.edges))
        asked += distinct(drawn, far)
        drawn += edges[-1] * (1 - (1 - cut) ** (hop + 1))
        nodes.append(min(n, nodes[0] + distinct(FRESH * sum(edges), n)))
    rows, sizes = nodes.pop(), nodes[::-1]
    remote = min(distinct(drawn, far), rows)

    # The cache: at most half of it has adjacency of remote nodes, and the rest has their feature rows.
    cache = config.cache if loader == "pipeline" else 0
    halo = distinct(cut * job.edges / job.machines, far)
    adjacency = 4 * degree * min(far, halo * min(2, hops - 1))
    kept = min(adjacency, cache / 2)
    missed = max(0.0, 1 - (cache - kept) / row / far) ** MISSES if far else 0.0
    asked *= 1 - kept / adjacency if adjacency else 1.0
    steps = job.steps * (1 + job.val / job.train)  # with those of the validation
    parameters = sum(2 * a * b + b for a, b in pairwise(widths))
    gradients = 8 * (world - 1) / world * parameters if job.machines > 1 else 0.0

    epochs = max(1, config.epochs)
    seen = distinct(epochs * steps * drawn, far)  # by a rank in the job: each row is fetched once, and again if it left
    fetched = (seen + max(0.0, epochs * steps * remote - seen) * missed) / epochs / steps
    pulled = fetched * (row + ROW_ID) + asked * (ROW_ID + NEIGHBOR[loader] * edges[-1] / sizes[0])
    sent = world * steps * pulled + job.machines * job.steps * gradients
    batches = math.ceil(n / world / config.eval_batch_size)  # of the exact evaluation, for each layer
    read = batches * min(distinct(cut * config.eval_batch_size * degree, far), halo)
    evaluation = world * min(read, halo + read * missed) * sum(4 * width + ROW_ID for width in widths[:-1])

    # Memory. The evaluation stores the outputs of two layers in the servers. Processes of a machine share these pages.
    stored, features = 1.05 * job.edges / job.machines * (1 + cut), 1.05 * row * n / job.machines
    outputs = 1.05 * 4 * n / job.machines * max(map(sum, pairwise(widths[1:])), default=job.classes)
    loading, loaded = (per_edge * stored for per_edge in SERVER_EDGE[loader])
    server = SERVER + 24 * n / job.machines + features
    layers = list(zip(sizes, pairwise(widths), strict=True))  # rows of the output, widths of the input and the output
    trained = sum(4 * HIDDEN * size * width for size, (_, width) in layers)
    trained += 8 * job.width * sizes[0] * (2 + config.ahead)
    evaluated = EVALUATED * 4 * config.hidden_size * min(n, config.eval_batch_size * (1 + degree))
    own = TRAINER + TRAINER_EDGE * stored + TRAINER_NODE * n
    own += 2 * kept + min(cache - kept, row * far) + max(trained, evaluated + outputs / job.trainers)
    machine = server + max(loading, loaded + job.trainers * (own - SHARED)) + (job.servers - 1) * (SERVER - SHARED)
    return Estimate(
        server=server + max(loading, loaded + outputs),
        trainer=own + features / job.trainers + 4 * stored,
        machine=machine,
        total=COMMAND + job.machines * machine,
        partition=COMMAND + max(NUMBERED * job.edges, 4 * job.edges + WRITTEN * stored),
        cut=cut,
        input_rows=rows,
        remote_rows=remote,
        fetched_rows=fetched,
        epoch_bytes=sent,
        job_bytes=epochs * sent + world * kept + evaluation,
        seconds=_seconds(job, layers, edges, pulled, gradients),
        cache=row * far + 2 * adjacency,
    )


def _seconds(job: Job, layers: list[Any], edges: list[float], remote: float, gradients: float) -> dict[str, float]:
    """Return the seconds of an epoch by part. Batches are prepared while others are computed."""
    crowd = job.trainers * (job.machines if job.together else 1)
    threads, crowding = 1 + THREADS * (max(1, job.cores // crowd) - 1), max(1.0, crowd / job.cores)
    flops = sum((3 if depth else 2) * 4 * size * a * b for depth, (size, (a, b)) in enumerate(layers))
    moved = sum(4 * size * b for size, (_, b) in layers)
    computing = (flops / FLOPS + moved / MOVED) / threads * crowding
    sampling = sum(edges) / SAMPLED + 4 * job.width * edges[-1] / READ
    if remote:
        sampling += remote / COPIED + (len(edges) + 1) * (REQUEST + REQUESTED * (job.machines - 1))
    sampling *= crowding
    rate = (job.wire or UNSHAPED) * EFFICIENCY / 8
    link = job.trainers * remote / rate
    ahead = job.config.in_pipeline() and job.config.ahead > 0
    hidden = min(link, computing + sampling) * (job.steps - 1) / job.steps if ahead else 0.0
    parts = {"computing": computing, "sampling": sampling, "link": link - hidden, "gradients": gradients / rate}
    return {name: seconds * job.steps for name, seconds in parts.items()}


def sizes_of(source: DataSource | Partition) -> dict[str, Any]:
    """Return ``nodes`` to ``val`` of a ``Job``, and the ``cut`` of a partition. Other data sets are loaded."""
    if isinstance(source, Partition):
        facts, report, where = source.manifest["dataset"], source.report, source.folder
        sizes = {"nodes": sum(report.nodes), "edges": sum(report.edges), "train": sum(report.train_nodes)}
        sizes |= {"val": 0, "cut": report.edge_cut_share}
    else:
        source.check()
        if source.name == "synthetic-products":  # imitates ogbn-products at any size, including its split
            sizes = PUBLISHED["ogbn-products"]
            return sizes | {name: round(source.scale * sizes[name]) for name in ("nodes", "edges", "train", "val")}
        if source.name in PUBLISHED:
            return dict(PUBLISHED[source.name])
        dataset, where = source.load(), source.name
        facts, split = dataset_description(dataset), dataset.split_counts()
        sizes = {"nodes": dataset.structure.num_nodes(), "edges": dataset.structure.num_edges()}
        sizes |= {"train": split["train_mask"], "val": split["val_mask"]}
    if "target" in facts or not facts["num_features"] or not facts["num_classes"]:
        raise InputError(f"{where}: plan needs a graph with features, labels and one type of nodes")
    return sizes | {"width": facts["num_features"], "classes": facts["num_classes"]}


def make_job(graph: Graph, machines: int | None, wire: str | None, memory: str | None, **fields: Any) -> Job:
    """Return the job that the options of ``plan`` describe. A ``graph`` given by its sizes may lack ``train``."""
    sizes, assumed = graph if isinstance(graph, dict) else sizes_of(graph), list[str]()
    if isinstance(graph, Partition):
        machines = graph.report.parts if machines is None else machines
        check_parts(graph.report.parts, machines, graph.folder)
        assumed.append("no validation nodes")
    if sizes.get("train") is None:
        sizes = {**sizes, "train": max(1, round(TRAIN_SHARE * sizes["nodes"]))}
        assumed.append(f"{TRAIN_SHARE:.0%} of the nodes are training nodes (see --train-nodes)")
    rate = parse_wire(wire or (None if fields["together"] else "10gbit"))
    free = memory_for_us() if fields["together"] else math.inf
    limit = free if memory is None else parse_memory(memory)
    fields |= {"machines": 2 if machines is None else machines, "wire": None if rate is None else 8.0 * rate}
    return Job(**sizes, **fields, memory=limit, assumed=tuple(assumed))


def describe(job: Job, found: Estimate) -> str:
    """Return the estimate, the cost of a full cache and the assumptions as text for a terminal."""
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in found.seconds.items())
    lines = [
        f"graph      {job.nodes:,} nodes, {job.edges:,} edges, {job.train:,} training nodes",
        f"machines   {job.machines}, each with {job.servers} server(s) and {job.trainers} trainer(s)",
        f"memory     server {_size(found.server)}, trainer {_size(found.trainer)}, machine {_size(found.machine)}, "
        f"all machines {_size(found.total)}, partitioning {_size(found.partition)}",
        f"step       {found.input_rows:,.0f} input rows, {found.remote_rows:,.0f} of them on other machines, "
        f"{found.fetched_rows:,.0f} of these not in the cache",
        f"epoch      {job.steps:,} steps, {found.epoch:.3g} s ({parts}), {_size(found.epoch_bytes)} sent",
        f"job        {_size(found.job_bytes)} sent in {job.config.epochs} epochs and the evaluation",
    ]
    if job.machines > 1 and job.config.in_pipeline():
        cache = math.ceil(found.cache / 1e6)
        full = estimate(replace(job, config=replace(job.config, cache=cache * 10**6)))
        lines.append(
            f"cache      --cache {cache}MB holds all remote rows. Then a machine needs {_size(full.machine)} instead "
            f"of {_size(found.machine)}, and an epoch takes {full.epoch:.3g} s instead of {found.epoch:.3g} s."
        )
    assumed = [*job.assumed, "degrees as in ogbn-products", "cores as fast as ours"]
    if job.machines > 1 and job.cut is None:
        random = _size(estimate(replace(job, cut=1 - 1 / job.machines)).epoch_bytes)
        assumed.append(f"{found.cut:.1%} of the edges cut (random partition: {random} sent in an epoch)")
    return "\n".join([*lines, f"assumed    {', '.join(assumed)}"])


def _size(count: float) -> str:
    return human_bytes(round(count))


def check_fits(job: Job, found: Estimate) -> None:
    """Raise an InputError if the job needs more memory than there is."""
    needed, where = (found.total, "this computer") if job.together else (found.machine, "a machine")
    if needed > job.memory:
        message = f"this does not fit: {where} needs about {_size(needed)} of memory and has {_size(job.memory)}"
        raise InputError(message, "Reduce --batch-size, --fanouts or --cache, or use more computers (--machines).")
