"""A training run from the data set to ``result.json``, as ``python -m tutorial_lib train`` starts it."""

import os
import platform
import resource
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data import Dataset, default_root
from tutorial_lib.data.tables import read_ids, write_named_predictions
from tutorial_lib.errors import JobError
from tutorial_lib.files import write_json
from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.job.display import Reporter
from tutorial_lib.job.folder import NEW_RUN, Continuation, log_folder, open_run, own_run_folder, settings_of
from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.job.layout import Layout, check_results, run_on_machines
from tutorial_lib.job.parts import check_parts
from tutorial_lib.job.remote_files import (
    IP_CONFIG,
    JOB,
    check_delivery,
    exclude_other_parts,
    fetch_results,
    read_delivery,
)
from tutorial_lib.job.result import distributed_result, result_of
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.coordinator import Event
from tutorial_lib.launcher.signals import first_sigterm
from tutorial_lib.partition import Partition, dataset_description
from tutorial_lib.tasks import task_named
from tutorial_lib.tasks.run import train_single
from tutorial_lib.tasks.task import LocalShard
from tutorial_lib.trainer.checkpoint import CheckpointManager, export_weights
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import phases_of
from tutorial_lib.trainer.loop import Stopped
from tutorial_lib.trainer.placement import settle

FINISHING_SECONDS = 20.0  # Kubernetes and often Slurm allow 30 s between SIGTERM and SIGKILL


def run_distributed(
    source: DataSource | Partition,
    layout: Layout,
    config: TrainConfig,
    out: Path,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
) -> dict[str, Any]:
    """Train on the machines of ``layout`` and return the content of ``result.json``.

    Args:
        source: a data set, which this function loads and partitions, or a partition with one part for each machine.
        out: run folder. It must be empty or missing, unless ``keep`` continues the run in it.

    Raises:
        InputError: a check before the start failed. JobFailed: the job failed, with the first cause.
    """
    reporter, out = reporter or Reporter(), out.absolute()
    reporter.epochs = config.epochs
    layout.check_device()
    data = source.folder if isinstance(source, Partition) else source.root or default_root()
    cluster = layout.cluster(out, data)
    if isinstance(source, Partition):
        partition = source
        task_named(config.task).check(partition.manifest["dataset"])
        check_parts(partition.report.parts, len(cluster.machines), partition.folder)
    else:  # no reference to the graph is kept, because the servers load the parts again
        partition = source.partition(_load(source, config, reporter), len(cluster.machines), reporter.say)
        cut, train_nodes = partition.report.edge_cut_share, partition.report.train_nodes
        reporter.say(f"{len(cluster.machines)} part(s), {cut:.1%} of the edges cut, train nodes {train_nodes}")
    if config.task == "link":
        partition.check_edge_map()
    manifest = partition.manifest
    settings = settings_of(
        config,
        manifest["dataset"]["name"],
        manifest["fingerprint"],
        machines=len(cluster.machines),
        trainers=layout.trainers,
        partition=manifest["files"]["node_map.npy"]["sha256"][:16],
    )
    if keep.resume and (left := read_delivery(out)):  # a killed run can have a newer checkpoint there
        check_delivery(out, left, cluster, trust=keep.trust)
        with own_run_folder(out):
            for problem in fetch_results(out, left, reporter.say):
                reporter.say(f"continuing without some results: {problem}")
    start, logs = time.time(), log_folder(out)
    with open_run(out, reporter, keep, settings) as log, cluster, Agents(cluster, logs, log.warn) as agents:
        job = {"train": config.to_dict(), "description": settings, "device": layout.device}
        write_json(out / JOB, {**job, "checkpoint_every": keep.every, "resume": keep.resume})
        write_ip_config(out / IP_CONFIG, cluster.machines)
        plan, parts = make_plan(partition, cluster, layout, config, out, logs), partition.folder
        rules = exclude_other_parts(parts, partition.config, len(cluster.machines))
        uploads = [(parts, f"partitions/{parts.name}", rules)]
        coordinator, missing = run_on_machines(
            agents, plan, layout, out, log.write, uploads, finishing=FINISHING_SECONDS
        )
    result = distributed_result(partition, config, plan, coordinator, time.time() - start, log.earlier, log.resumed)
    write_json(out / "result.json", result)
    check_results(missing)
    _name_predictions(out, read_ids(partition.folder), manifest["dataset"])
    return result


def _name_predictions(out: Path, ids: Any, info: dict[str, Any]) -> None:
    if ids is not None and (out / "predictions.npy").exists():
        write_named_predictions(out, ids, info.get("class_names", []))


def _load(source: DataSource, config: TrainConfig, reporter: Reporter) -> Dataset:
    task = task_named(config.task)
    reporter.say(f"loading {source.name}")
    dataset = source.load(features=task.uses_features)
    task.check(dataset_description(dataset))
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
    *,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train in this process alone, with the same outputs. A distributed run must agree with this one.

    Args:
        device: "auto", "cpu" or "cuda".

    Raises:
        InputError: the run cannot start. JobError: the loss is not a finite number. SystemExit: SIGTERM arrived.
    """
    reporter = reporter or Reporter()
    reporter.epochs = config.epochs
    place = settle(device)
    dataset = _load(source, config, reporter)
    _ = dataset.graph  # this process needs the whole graph
    start = time.time()  # as in a distributed run, the time begins when the data are in memory
    out = out.absolute()
    settings = settings_of(
        config, dataset.name, dataset.fingerprint(), machines=1, trainers=1, partition="single process"
    )
    with open_run(out, reporter, keep, settings) as log:
        events: list[Event] = []

        def emit(kind: str, **fields: Any) -> None:
            events.append({"kind": kind, "time": time.time(), "rank": 0, "local_rank": 0, **fields})
            log.write(events[-1])

        write_json(out / JOB, {"train": config.to_dict(), "description": settings})
        told = threading.Event()
        saver = CheckpointManager(out / "checkpoint", settings, keep.every, keep.resume, emit, told.is_set)
        try:
            with first_sigterm(told.set):
                trained = train_single(LocalShard(dataset, place, emit), config, saver)
        except Stopped:
            sys.exit(128 + signal.SIGTERM)
        except FloatingPointError as error:
            raise JobError(str(error)) from None
        export_weights(trained.model, config.to_dict(), out / "checkpoint")
        trained.save(out)
    _name_predictions(out, dataset.ids, dataset.info)
    result = result_of(
        dataset_description(dataset),
        config,
        processes=(1, 1, 0, 0),
        epochs=[asdict(epoch) for epoch in trained.epochs],
        **trained.summary(),
        seconds=time.time() - start,
        bytes_sent={},
        peak_rss={platform.node(): {"trainer": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}},
        resumed_epochs=len(log.resumed),
        phases=phases_of([*log.earlier, *events]),
        **place.describe(),
    )
    write_json(out / "result.json", result)
    return result
