"""``plan`` estimates memory, traffic and time of a job. The constants were fitted to runs (benchmarks/plan.py)."""

import json
import math
import os
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from operator import mul
from typing import Annotated

from cyclopts import Parameter

from tutorial_lib.data import check_dataset_arguments
from tutorial_lib.errors import InputError
from tutorial_lib.files import JsonObject
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends.emulated import parse_wire
from tutorial_lib.tasks import uses_pipeline
from tutorial_lib.tools import options as opts
from tutorial_lib.tools.options import about, app, flatten
from tutorial_lib.trainer.config import TrainConfig

NOT_IN_PLAN = "seed fanouts cache learning_rate task embedding_size embedding_learning_rate"

SERVER_BYTES, TRAINER_BYTES, COMMAND_BYTES = 0.40e9, 0.28e9, 0.05e9  # of a process without a graph
SHARED_BYTES = 0.27e9  # of the pages that all processes of a machine share
BYTES_PER_SERVER_EDGE = {"dgl": (43, 22), "pipeline": (20, 5)}  # of a part, while a server loads it and afterwards
BYTES_PER_SERVER_NODE, BYTES_PER_TRAINER_NODE, BYTES_PER_TRAINER_EDGE = 24, 8, 12
ID_BYTES = 8  # of a node ID in a request
ACTIVATION_BYTES = 48  # of each output of a layer, with its gradient and its copies
ASSIGN_BYTES_PER_EDGE, WRITE_BYTES_PER_EDGE = 21, 42  # of KaMinPar, and of the writer of the parts
UNSHAPED_BITS_PER_SECOND = 8e9  # between emulated machines without a limit
LINK_EFFICIENCY = 0.8  # share of the bandwidth that the rows get
COPY_BYTES_PER_SECOND = 330e6  # of a core that serves or receives rows
REQUEST_SECONDS, SECONDS_PER_PEER = 3.5e-3, 1.5e-3  # of a request, and more for each further machine
FLOPS, EDGES_PER_SECOND = 85e9, 7e6  # of a core that trains, and of a core that samples
CORE_EXPONENT = 0.85  # n cores are n ** CORE_EXPONENT times as fast as one core
CUT_OF_TWO_PARTS, CUT_EXPONENT = 0.038, 1.1  # the share of cut edges grows with a power of log2(parts)
NEW_SHARE = 0.85  # share of the sampled edges that can lead to a new node
DEGREE_SHAPE = 0.7  # shape of the gamma distribution of the degrees
MISS_EXPONENT = 3  # the share of misses is a power of the share of rows that do not fit into the cache
BatchSizes = tuple[list[float], float, float]  # nodes after each hop, sampled edges, and those from other machines
CORES = len(os.sched_getaffinity(0))
PRODUCTS = {"nodes": 2_449_029, "edges": 123_718_280, "train": 196_615, "val": 39_323}


@dataclass(frozen=True)
class Job:
    """A job that trains GraphSAGE on a graph with one type of nodes, on CPUs."""

    nodes: Annotated[int, about("Number of nodes, instead of --dataset.")] = 0
    edges: Annotated[int, about("Number of directed edges. An undirected edge counts twice.")] = 0
    width: Annotated[int, about("Number of features of a node.", name="--feature-width")] = 100
    classes: Annotated[int, about("Number of classes.")] = 47
    train: Annotated[int, about("Number of training nodes. 0 means 10 % of all nodes.", name="--train-nodes")] = 0
    val: Annotated[int, about("Number of validation nodes.", name="--val-nodes")] = 0
    machines: int = 2
    trainers: Annotated[int, about("Trainers per machine.", "Machines")] = 1
    config: TrainConfig = field(default_factory=TrainConfig)
    wire: float | None = None  # bits per second of each machine, or None for no limit
    together: bool = True  # all machines share this computer and its cores
    cores: Annotated[int, about("Cores per machine. With --emulate, all machines share them.", "Machines")] = CORES
    cut: Annotated[float | None, about("Share of cut edges, which partition prints as edge_cut_share.")] = None

    def check_values(self) -> None:
        for name in ("nodes", "edges", "width", "classes", "train", "machines", "trainers", "cores"):
            if not 1 <= getattr(self, name) <= 10**13:
                raise InputError(f"{name} must be between 1 and {10**13:,}, not {getattr(self, name)}", "See --help.")
        if not 0 <= (self.cut or 0) <= 1:
            raise InputError(f"--cut must be between 0 and 1, not {self.cut}")
        if self.val < 0 or self.train + self.val > self.nodes:
            split = f"{self.train:,} training and {self.val:,} validation nodes"
            raise InputError(f"{split} exceed the {self.nodes:,} nodes")

    @property
    def steps(self) -> int:  # of a rank in an epoch
        return math.ceil(self.train / (self.machines * self.trainers) / self.config.batch_size)

    @property
    def widths(self) -> list[int]:  # of the inputs, and of the outputs of each layer
        return [self.width, *[self.config.hidden_size] * (len(self.config.fanouts) - 1), self.classes]


@dataclass(frozen=True)
class Estimate:
    """The needs of a job: bytes, rows of a step of a rank, and seconds. Rows and seconds are means over all epochs."""

    memory: dict[str, float]  # of the processes, and of a machine, which counts memory that processes share once
    cut: float  # share of the edges between parts
    steps: int  # steps per rank and epoch
    rows: dict[str, float]  # input rows, those that other machines store, and those of them that are not in the cache
    epoch_bytes: float  # sent by all machines
    job_bytes: float  # with the exact evaluation
    cache: float  # bytes of --cache for everything that a trainer reads from other machines
    seconds: dict[str, float]  # seconds per epoch, by activity
    epoch: float  # seconds of an epoch


@app.command
def plan(
    *,
    dataset: Annotated[str | None, about("Data set, by name or path (see the command data).", "Data")] = None,
    source: Annotated[DataSource, flatten("Data", "name method both_ways")] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", NOT_IN_PLAN)] = TrainConfig(),
    fanouts: opts.FanoutsOption = "15,10,5",
    cache: opts.CacheOption = "256MB",
    job: Annotated[Job, Parameter(name="*", group="Graph", parse="^(?!machines|config|wire|together)")] = Job(),
    emulate: Annotated[int, about("Number of emulated machines.", "Machines")] = 2,
    machines: Annotated[int | None, about("Number of separate computers.", "Machines")] = None,
    wire: Annotated[str | None, about("Bandwidth per machine. (default: 10gbit; emulated: none)", "Machines")] = None,
    as_json: opts.JsonOption = False,
) -> None:
    """Estimate the memory, network traffic and time per epoch of a job before you start it."""
    if (job.nodes > 0) != (dataset is None) or (job.edges > 0) != (dataset is None):
        raise InputError("choose one of --dataset NAME, and --nodes N with --edges N")
    config = opts.complete_config(config, source.seed, fanouts, cache)
    rate = parse_wire(wire or (None if machines is None else "10gbit"))
    sizes = job_sizes(replace(source, name=dataset)) if dataset else {"train": job.train or max(1, job.nodes // 10)}
    machine_fields = {"together": machines is None, "machines": emulate if machines is None else machines}
    job = replace(job, **sizes, **machine_fields, config=config, wire=rate and 8.0 * rate)
    estimated = estimate(job)
    report = {"job": asdict(job), "estimate": asdict(estimated)}
    print(json.dumps(report, indent=2) if as_json else describe_estimate(job, estimated))


def distinct(samples: float, population: float) -> float:
    """Return the expected number of distinct nodes in ``samples`` draws from a ``population``, weighted by degree."""
    return population * (1 - (1 + samples / population / DEGREE_SHAPE) ** -DEGREE_SHAPE) if population else 0.0


def estimate(job: Job) -> Estimate:
    """Return the estimated needs of a job, or raise an InputError if a number is out of range."""
    job.check_values()
    assumed_cut = CUT_OF_TWO_PARTS * math.log2(job.machines) ** CUT_EXPONENT
    cut = min(1 - 1 / job.machines, assumed_cut if job.cut is None else job.cut)
    batch = batch_sizes(job, cut)
    cache = job.nodes * (1 - 1 / job.machines) * (4 * job.width + 4 * job.edges / job.nodes)
    cached = min(job.config.cache, cache) if uses_pipeline(job.config) else 0.0
    ranks, parameters = job.machines * job.trainers, sum(2 * a * b + b for a, b in pairwise(job.widths))
    gradients = 8 * (ranks - 1) / ranks * parameters if job.machines > 1 else 0.0  # sent by a machine in a step
    traffic = estimate_traffic(job, batch, cut, cached / cache if cache else 1.0, gradients)
    seconds = step_seconds(job, batch, traffic["rows"]["fetched"], gradients)
    seconds = {activity: job.steps * value for activity, value in seconds.items()}
    memory = memory_bytes(job, batch, cut, cached)
    return Estimate(memory, cut, job.steps, **traffic, cache=cache, seconds=seconds, epoch=sum(seconds.values()))


def batch_sizes(job: Job, cut: float) -> BatchSizes:
    degree = job.edges / job.nodes
    seeds = job.train / (job.machines * job.trainers) / job.steps
    nodes, edges, remote_edges = [seeds], 0.0, 0.0
    for hop, fanout in enumerate(reversed(job.config.fanouts), start=1):
        sampled = nodes[-1] * max(1.0, degree if fanout < 0 else min(fanout, degree))
        edges += sampled
        remote_edges += sampled * (1 - (1 - cut) ** hop)
        nodes.append(min(job.nodes, seeds + distinct(NEW_SHARE * edges, job.nodes)))
    return nodes, edges, remote_edges


def estimate_traffic(job: Job, batch: BatchSizes, cut: float, cached: float, gradients: float) -> JsonObject:
    """Return ``rows``, ``epoch_bytes`` and ``job_bytes`` of an ``Estimate``."""
    (*_, inputs), _, remote_edges = batch
    ranks, epochs = job.machines * job.trainers, max(1, job.config.epochs)
    remote_nodes = job.nodes * (1 - 1 / job.machines)
    batches = job.steps * (1 + job.val / job.train)  # with those of the validation
    missed = (1 - cached) ** MISS_EXPONENT
    remote = min(inputs, distinct(remote_edges, remote_nodes))
    # A rank fetches a remote row once, and again if there is no room for it in the cache.
    first_fetches = min(remote, distinct(epochs * batches * remote_edges, remote_nodes) / epochs / batches)
    fetched = first_fetches + (remote - first_fetches) * missed
    sent = ranks * batches * (fetched * (4 * job.width + ID_BYTES)) + job.machines * job.steps * gradients
    halo_fetches = (1 + missed) * distinct(cut * job.edges / job.machines, remote_nodes)
    widths = job.widths[:-1]
    if uses_pipeline(job.config):  # multiplies first if this gives shorter rows
        widths = [job.width, *map(min, pairwise(job.widths[1:]))]
    evaluation = ranks * halo_fetches * sum(4 * width + ID_BYTES for width in widths)
    rows = {"input": inputs, "remote": remote, "fetched": fetched}
    return {"rows": rows, "epoch_bytes": sent, "job_bytes": epochs * sent + evaluation}


def memory_bytes(job: Job, batch: BatchSizes, cut: float, cached: float) -> dict[str, float]:
    """Return the memory of each process and of the machines. Trainers map the memory of their server."""
    config, n, widths, nodes = job.config, job.nodes, job.widths, batch[0]
    stored = 1.05 * job.edges / job.machines * (1 + cut)
    features = 1.05 * (4 * job.width) * n / job.machines
    # In the evaluation, servers store the outputs of two layers.
    outputs = 1.05 * 4 * n / job.machines * max(map(sum, pairwise(widths[1:])), default=job.classes)
    loading, loaded = BYTES_PER_SERVER_EDGE["pipeline" if uses_pipeline(config) else "dgl"]
    structure = max(stored * loading, stored * loaded + outputs)
    server = SERVER_BYTES + BYTES_PER_SERVER_NODE * n / job.machines + features + structure
    activations = ACTIVATION_BYTES * sum(map(mul, nodes, reversed(widths[1:])))
    trained = activations + 4 * job.width * nodes[-1] * (2 + config.ahead)
    evaluated = 5 * config.hidden_size * min(n, config.eval_batch_size * (1 + job.edges / n))
    adjacency = BYTES_PER_TRAINER_EDGE * stored + BYTES_PER_TRAINER_NODE * n
    private = TRAINER_BYTES + adjacency + cached + max(trained, evaluated)
    trainer = private + (features + outputs) / job.trainers + 4 * stored
    machine = server + job.trainers * (private - SHARED_BYTES)
    total = COMMAND_BYTES + job.machines * machine
    partition = SERVER_BYTES + max(ASSIGN_BYTES_PER_EDGE * job.edges, 4 * job.edges + WRITE_BYTES_PER_EDGE * stored)
    return {"server": server, "trainer": trainer, "machine": machine, "all machines": total, "partitioning": partition}


def step_seconds(job: Job, batch: BatchSizes, fetched: float, gradients: float) -> dict[str, float]:
    """Return the seconds of a step by activity. Batches are prepared while others are computed."""
    (nodes, edges, _), widths, pulled = batch, job.widths, fetched * (4 * job.width + ID_BYTES)
    cores = job.cores / job.trainers / (job.machines if job.together else 1)  # cores of a trainer
    products = map(math.prod, zip(nodes, reversed(widths[1:]), reversed(widths[:-1]), strict=False))
    computing = 12 * sum(products) / FLOPS / min(cores, max(1.0, cores) ** CORE_EXPONENT)
    requests = len(widths) * (REQUEST_SECONDS + SECONDS_PER_PEER * (job.machines - 1)) if pulled else 0.0
    sampling = (edges / EDGES_PER_SECOND + pulled / COPY_BYTES_PER_SECOND + requests) / min(1.0, cores)
    rate = (job.wire or UNSHAPED_BITS_PER_SECOND) * LINK_EFFICIENCY / 8
    link = job.trainers * pulled / rate
    if uses_pipeline(job.config) and job.config.ahead > 0:
        link -= min(link, computing + sampling) * (job.steps - 1) / job.steps
    return {"computing": computing, "sampling": sampling, "link": link, "gradients": gradients / rate}


def job_sizes(source: DataSource) -> dict[str, int]:
    """Return ``nodes`` to ``val`` of a ``Job``. Data sets with unknown sizes are loaded."""
    check_dataset_arguments(source.name, source.scale, source.seed)
    if source.name in ("synthetic-products", "ogbn-products"):  # the former imitates the latter at any size
        scale = source.scale if source.name == "synthetic-products" else 1.0
        return {"width": 100, "classes": 47, **{name: round(scale * count) for name, count in PRODUCTS.items()}}
    dataset = source.load()
    graph, split = dataset.structure, dataset.split_counts()
    if not graph.is_homogeneous or not dataset.num_features or not dataset.num_classes:
        raise InputError(f"{source.name}: plan needs a graph with features, labels and one type of nodes")
    sizes = {"nodes": graph.num_nodes(), "edges": graph.num_edges(), "width": dataset.num_features}
    return sizes | {"classes": dataset.num_classes, "train": split["train_mask"], "val": split["val_mask"]}


def describe_estimate(job: Job, estimated: Estimate) -> str:
    """Return the estimate and its assumptions as text for a terminal."""
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in estimated.seconds.items())
    memory = ", ".join(f"{name} {count / 1e9:.2f}" for name, count in estimated.memory.items())
    return f"""\
graph      {job.nodes:,} nodes, {job.edges:,} edges ({estimated.cut:.1%} of them cut), {job.train:,} training nodes
machines   {job.machines}, each with {job.trainers} trainer(s) and a server
memory, GB {memory}
step       {estimated.rows["input"]:,.0f} input rows, {estimated.rows["remote"]:,.0f} of them on other machines, \
{estimated.rows["fetched"]:,.0f} of these not in the cache
epoch      {estimated.steps:,} steps, {estimated.epoch:.3g} s ({parts}), {estimated.epoch_bytes / 1e6:,.1f} MB sent
job        {estimated.job_bytes / 1e6:,.1f} MB sent in {job.config.epochs} epochs and the evaluation
cache      --cache {math.ceil(estimated.cache / 1e6)}MB holds all remote rows
assumed    degrees as in ogbn-products, cores with {FLOPS / 1e9:.0f} GFLOP/s"""
