"""A training run from the data set to ``result.json``, as ``python -m tutorial_lib train`` starts it."""

import os
import platform
import resource
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

import tutorial_lib
from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data import Dataset, default_root
from tutorial_lib.data.tables import read_ids, write_named_predictions
from tutorial_lib.errors import JobError
from tutorial_lib.files import JsonObject, write_json
from tutorial_lib.job.dgl import JobPlan, read_part
from tutorial_lib.job.display import Reporter
from tutorial_lib.job.folder import NEW_RUN, Continuation, EventLog, log_folder, open_run, own_run_folder, settings_of
from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.job.layout import Layout, check_results, run_on_machines
from tutorial_lib.job.remote_files import IP_CONFIG, JOB, fetch_results
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.coordinator import Event, MachineUse
from tutorial_lib.partition import Partition, dataset_description
from tutorial_lib.tasks import TASKS, check_data
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import SCORES, phases_of

FINISHING_SECONDS = 20.0  # Kubernetes and often Slurm allow 30 s between SIGTERM and SIGKILL


def run_distributed(
    source: DataSource | Partition,
    layout: Layout,
    config: TrainConfig,
    out: Path,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
) -> JsonObject:
    """Train on the machines of ``layout`` and return the content of ``result.json``.

    A partition must have one part for each machine. An InputError reports a failed check before the start, and a
    JobFailed the first cause of a failure.
    """
    reporter, out = reporter or Reporter(), out.absolute()
    reporter.epochs = config.epochs
    data = source.folder if isinstance(source, Partition) else source.root or default_root()
    cluster = layout.cluster(out, data)
    count = len(cluster.machines)
    if isinstance(source, Partition):
        partition = source
        read_part(partition.config, 0, count)
    else:
        source.check_arguments()
        if (found := source.find_partition(count, features=TASKS[config.task].features)) is not None:
            partition = found
            reporter.say(f"reusing {partition.folder}")
        else:  # no reference to the graph is kept, because the servers load the parts again
            partition = source.partition(_load(source, config, reporter), count, reporter.say)
        cut, train_nodes = partition.report.edge_cut_share, partition.report.train_nodes
        reporter.say(f"{count} part(s), {cut:.1%} of the edges cut, train nodes {train_nodes}")
    check_data(config.task, partition.manifest["dataset"])
    if config.task == "link" and "edge_map.npy" not in partition.manifest["files"]:
        _ = partition.edge_map  # raises an error that names the file
    manifest, parts, info = partition.manifest, partition.folder, partition.manifest["dataset"]
    places = {"machines": count, "trainers": layout.trainers}
    key = manifest["files"]["node_map.npy"]["sha256"][:16]
    settings = settings_of(config, info["name"], manifest["fingerprint"], **places, partition=key)
    if keep.resume:
        with own_run_folder(out):  # the machines of a killed run can have a newer checkpoint
            for problem in fetch_results(out, reporter.say, cluster, trust=keep.trust):
                reporter.say(f"continuing without some results: {problem}")
    start, logs = time.time(), log_folder(out)
    with open_run(out, reporter, keep, settings) as log, cluster, Agents(cluster, logs, log.warn) as agents:
        job = {"train": config.to_dict(), "description": settings, "device": layout.device}
        write_json(out / JOB, {**job, "checkpoint_every": keep.every, "resume": keep.resume})
        write_ip_config(out / IP_CONFIG, cluster.machines)
        plan = make_plan(partition, cluster, layout, config, out, logs)
        uploads = [(parts, f"partitions/{parts.name}", partition.config.parent)]
        limits = replace(layout.limits(), finishing=FINISHING_SECONDS)
        coordinator, missing = run_on_machines(agents, plan, limits, out, log.write, uploads)
    about = {"dataset_info": info, "config": config.to_dict(), "seconds": time.time() - start}
    about |= {"machines": count, "trainers_per_machine": layout.trainers, "servers_per_machine": layout.servers}
    about |= {"samplers_per_trainer": layout.samplers, "partition": asdict(partition.report)}
    result = _write_result(out, about, read_ids(parts), log, coordinator.events, coordinator.use)
    check_results(missing)
    return result


def _load(source: DataSource, config: TrainConfig, reporter: Reporter) -> Dataset:
    reporter.say(f"loading {source.name}")
    dataset = source.load(features=TASKS[config.task].features)
    check_data(config.task, dataset_description(dataset))
    graph = dataset.structure
    reporter.say(f"{graph.num_nodes():,} nodes, {graph.num_edges():,} directed edges, {dataset.num_features} features")
    return dataset


def make_plan(
    partition: Partition, cluster: Backend, layout: Layout, config: TrainConfig, run: Path, logs: Path
) -> JobPlan:
    """Return the plan of a training in the run folder ``run``."""
    # Values that trainers store in /dev/shm for each node: hidden rows of the evaluation, and learnable embeddings.
    values = config.hidden_size * (len(config.fanouts) - 1) + partition.manifest["dataset"]["num_classes"]
    values += 3 * config.embedding_size + 1 if config.task == "embedding" else 0
    compact = config.in_pipeline(layout.samplers) and partition.has_graphbolt and graphbolt_problem() is None
    words = ["--use_graphbolt"] if compact else []
    # Pages of 2 MB (glibc 2.35) spare a trainer's first step 100,000 page faults.
    pages = {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return layout.plan(
        cluster,
        command=[sys.executable, "-m", "tutorial_lib.trainer", str(run / JOB), *words],
        part_config=str(partition.config),
        ip_config=str(run / IP_CONFIG),
        log_dir=str(logs),
        cwd=str(run if layout.real else Path(__file__).resolve().parents[2]),
        env={"TUTORIAL_SEED": str(config.seed), **pages},
        forks=layout.device == "cpu",  # a process that forks must not have used CUDA
        shm_of_trainers=4 * sum(partition.report.nodes) * values // len(cluster.machines),
    )


def run_single(
    source: DataSource,
    config: TrainConfig,
    out: Path,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
    device: str = "cpu",
) -> JsonObject:
    """Train in this process alone, with the same outputs. A distributed run must agree with this one."""
    # Only this function needs torch. Without it, the process of `run_distributed` starts faster and stays small.
    from tutorial_lib.tasks.run import train_single
    from tutorial_lib.tasks.task import LocalShard
    from tutorial_lib.trainer.checkpoint import CheckpointManager, export_weights
    from tutorial_lib.trainer.placement import choose_device

    reporter, out, events = reporter or Reporter(), out.absolute(), list[Event]()
    reporter.epochs = config.epochs
    placement, dataset = choose_device(device), _load(source, config, reporter)
    _ = dataset.graph  # this process needs the whole graph
    start = time.time()  # as in a distributed run, the time begins when the data are in memory
    places = {"machines": 1, "trainers": 1, "partition": "single process"}
    settings = settings_of(config, dataset.name, dataset.fingerprint(), **places)
    with open_run(out, reporter, keep, settings) as log:

        def emit(kind: str, **fields: object) -> None:
            events.append({"kind": kind, "time": time.time(), "rank": 0, "local_rank": 0, **fields})
            log.write(events[-1])

        write_json(out / JOB, {"train": config.to_dict(), "description": settings})
        emit("placed", **placement.describe())
        saver = CheckpointManager(out / "checkpoint", settings, keep.every, keep.resume, emit)
        try:
            trained = train_single(LocalShard(dataset, placement, emit), config, saver)
        except FloatingPointError as error:
            raise JobError(str(error)) from None
        export_weights(trained.model, config.to_dict(), out / "checkpoint")
        trained.save(out)
        emit("evaluation", **trained.summary())
    about = {"dataset_info": dataset_description(dataset), "config": config.to_dict(), "seconds": time.time() - start}
    about |= {"machines": 1, "trainers_per_machine": 1}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _write_result(out, about, dataset.ids, log, events, {platform.node(): MachineUse(0, {"trainer": peak})})


def _write_result(
    out: Path, about: JsonObject, ids: pa.Array | None, log: EventLog, events: list[Event], use: dict[str, MachineUse]
) -> JsonObject:
    """Write ``result.json``, and the predicted classes by ID if the data set has ``ids``.

    After ``--resume``, ``epochs`` and ``phases`` describe the whole run. ``seconds``, ``bytes_sent`` and ``peak_rss``
    describe the last start, which took its first ``resumed_epochs`` epochs from the checkpoint.
    """
    last = {event["kind"]: event for event in events}
    # Trainers resume fewer epochs than the checkpoint has if a file on another machine was damaged.
    resumed = log.resumed[: last["resumed"]["epochs"]] if "resumed" in last else []
    names = ("epoch", "loss", "seconds", "val_score", "val_accuracy")
    trained = [{name: event[name] for name in names} for event in events if event["kind"] == "epoch"]
    result = {
        "task": about["config"]["task"],
        "dataset": about["dataset_info"]["name"],
        **about,
        "world_size": about["machines"] * about["trainers_per_machine"],
        "epochs": [*map(asdict, resumed), *trained],
        **{name: last["evaluation"][name] for name in SCORES},
        **{name: last["placed"][name] for name in ("device", "backend", "device_reason")},
        "bytes_sent": {name: used.bytes_sent for name, used in use.items()},
        "peak_rss": {name: used.peak_rss for name, used in use.items()},
        "resumed_epochs": len(resumed),
        "phases": phases_of([*log.earlier, *events]),
        "versions": versions(),
    }
    write_json(out / "result.json", result)
    if ids is not None and (out / "predictions.npy").exists():
        write_named_predictions(out, ids, about["dataset_info"].get("class_names", []))
    return result


def versions() -> dict[str, str]:
    """Return the versions of the packages that influence a result."""
    packages = {name: version(name) for name in ("torch", "dgl", "torchdata", "numpy")}
    return {"python": platform.python_version(), "tutorial_lib": tutorial_lib.__version__, **packages}
