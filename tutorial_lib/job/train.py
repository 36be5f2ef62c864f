"""A training run from data set to ``result.json``: what ``python -m tutorial_lib train`` does."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_lib.cluster.coordinator import Coordinator, Event, Limits
from tutorial_lib.cluster.delivery import Delivery
from tutorial_lib.cluster.homecoming import Homecoming, fetch_left
from tutorial_lib.cluster.local import LocalCluster
from tutorial_lib.cluster.plan import JobPlan, check_parts
from tutorial_lib.cluster.spec import Cluster, write_ip_config
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.cluster.starts import not_running, read_starts
from tutorial_lib.compat.heap import large_pages
from tutorial_lib.data import Dataset
from tutorial_lib.errors import JobError
from tutorial_lib.files import write_json
from tutorial_lib.job.continuation import NEW_RUN, Continuation, describe
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.result import EventLog, Reporter, Silent, distributed_result, log_folder, result_of
from tutorial_lib.job.source import DataSource
from tutorial_lib.partition import Partition, dataset_description
from tutorial_lib.tasks import module_of
from tutorial_lib.trainer.checkpoint import Checkpoints, export_weights
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.placement import settle
from tutorial_lib.trainer.steps import phases_of


def run_distributed(
    source: DataSource,
    layout: Layout,
    config: TrainConfig,
    out: Path,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
    *,
    limits: Limits | None = None,
    on_start: Callable[[Coordinator], None] = lambda _coordinator: None,
) -> dict[str, Any]:
    """Load, partition, train on the machines of ``layout``; returns the content of ``result.json``.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    reporter = reporter or Silent()
    layout.check_device()
    cluster = layout.cluster()
    dataset = _load(source, config, reporter)
    partition = source.partition(dataset, len(cluster.machines), reporter.say)
    report = partition.report
    reporter.say(
        f"{report.parts} part(s), {report.edge_cut_share:.1%} of the edges cut, train nodes {report.train_nodes}"
    )
    del dataset  # the servers load their own parts; a large graph must not be in memory twice
    return train_on_cluster(
        partition, cluster, layout, config, out, limits=limits, reporter=reporter, keep=keep, on_start=on_start
    )


def _load(source: DataSource, config: TrainConfig, reporter: Reporter) -> Dataset:
    task = module_of(config.task)
    reporter.say(f"loading {source.name}")
    dataset = source.load(features=task.USES_FEATURES)
    task.check(dataset_description(dataset))
    graph = dataset.graph
    reporter.say(f"{graph.num_nodes():,} nodes, {graph.num_edges():,} directed edges, {dataset.num_features} features")
    return dataset


def run_single(
    source: DataSource,
    config: TrainConfig,
    out: Path,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
    *,
    device: str = "cpu",
) -> dict[str, Any]:
    """The plain loop in this process, with the same outputs: what a distributed run must agree with.

    Args:
        device: "auto", "cpu" or "cuda".

    Raises:
        InputError: found before training. JobError: the loss is not a finite number.
    """
    reporter = reporter or Silent()
    place = settle(device)
    dataset = _load(source, config, reporter)
    start = time.time()  # like a distributed run: from the data in memory to the result
    out = out.absolute()
    description = describe(
        config, dataset.name, dataset.fingerprint(), machines=1, trainers=1, partition="single process"
    )
    resumed = keep.open(out, config, description)
    with EventLog(out, reporter, resume=keep.resume) as log:
        events: list[Event] = []

        def emit(kind: str, **fields: Any) -> None:
            events.append({"kind": kind, "time": time.time(), "rank": 0, "local_rank": 0, **fields})
            log.write(events[-1])

        write_json(out / "job.json", {"train": config.to_dict(), "out": str(out), "description": description})
        saver = Checkpoints(out / "checkpoint", description, keep.every, keep.resume, emit)
        try:
            trained = module_of(config.task).train_single(
                dataset, config, lambda epoch: emit("epoch", **asdict(epoch)), emit=emit, saver=saver, place=place
            )
        except FloatingPointError as error:
            raise JobError(str(error)) from None
        export_weights(trained.model, config.to_dict(), out / "checkpoint")
        if trained.predictions is not None:
            np.save(out / "predictions.npy", trained.predictions.numpy())
    result = result_of(
        dataset_description(dataset),
        config,
        processes=(1, 1, 0, 0),
        epochs=[asdict(epoch) for epoch in trained.epochs],
        accuracies=(trained.val_accuracy, trained.test_accuracy),
        scores=trained.scores,
        seconds=time.time() - start,
        bytes_sent={},
        peak_rss={platform.node(): {"trainer": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}},
        resumed_epochs=len(resumed),
        phases=phases_of([*log.earlier, *events]),
        **place.describe(),
    )
    write_json(out / "result.json", result)
    return result


def train_on_cluster(
    partition: Partition,
    cluster: Cluster,
    layout: Layout,
    config: TrainConfig,
    out: Path,
    *,
    limits: Limits | None = None,
    reporter: Reporter | None = None,
    keep: Continuation = NEW_RUN,
    on_start: Callable[[Coordinator], None] = lambda _coordinator: None,
) -> dict[str, Any]:
    """Run one distributed training job and return the content of its ``result.json``.

    Args:
        partition: with as many parts as the cluster has machines.
        cluster: not yet entered; it is entered here and gone when this returns.
        out: run folder; must be empty or not exist yet, unless ``keep`` continues the run in it.
        on_start: called with the coordinator before it starts anything.
    """
    layout.check_device()
    module_of(config.task).check(partition.manifest["dataset"])
    check_parts(partition.report.parts, len(cluster.machines), partition.folder)
    out = out.absolute()
    description = describe(
        config,
        partition.manifest["dataset"]["name"],
        partition.manifest["fingerprint"],
        machines=len(cluster.machines),
        trainers=layout.trainers,
        partition=partition.manifest["files"]["node_map.npy"]["sha256"][:16],
    )
    reporter = reporter or Silent()
    if keep.resume and read_starts(out):  # that one was killed: the newest checkpoint may be on its machines
        with not_running(out):
            for problem in fetch_left(out, reporter.say):
                reporter.say(f"continuing without what is still out there: {problem}")
    resumed = keep.open(out, config, description)
    start = time.time()
    with cluster, EventLog(out, reporter, resume=keep.resume) as log:
        job = {"description": description, "checkpoint_every": keep.every, "resume": keep.resume}
        job["device"] = layout.device
        plan = _plan(partition, cluster, layout, config, out, job)
        with Homecoming(cluster, _delivery(partition, plan, cluster, layout, out), out, log.write) as home:
            coordinator = Coordinator(
                cluster,
                plan,
                home.on_event,
                limits or layout.limits(),
                remote=home.remote,
                allow_public=layout.real is not None and layout.real.allow_public,
            )
            on_start(coordinator)
            use = coordinator.run()
    result = distributed_result(
        partition,
        plan,
        config,
        coordinator.events,
        use,
        time.time() - start,
        earlier=log.earlier,
        resumed=resumed,
    )
    write_json(out / "result.json", result)
    home.check()
    return result


def _shm_of_trainers(partition: Partition, config: TrainConfig) -> int:
    """Bytes that trainers add to /dev/shm: rows of each layer's evaluation, and learned rows with their optimiser."""
    widths = [*[config.hidden_size] * (len(config.fanouts) - 1), partition.manifest["dataset"]["num_classes"]]
    if config.task == "embedding":
        widths.append(3 * config.embedding_size + 1)
    return 4 * sum(partition.report.nodes) * sum(widths)


def _plan(
    partition: Partition, cluster: Cluster, layout: Layout, config: TrainConfig, out: Path, more: dict[str, Any]
) -> JobPlan:
    """The plan of the job; ``more`` goes into the trainers' ``job.json``."""
    ip_config, job = out / "ip_config.txt", out / "job.json"
    write_ip_config(ip_config, cluster.machines)
    write_json(job, {"train": config.to_dict(), "partition": str(partition.folder), "out": str(out), **more})
    return JobPlan(
        machines=cluster.machines,
        command=[sys.executable, "-m", "tutorial_lib.trainer", str(job)],
        part_config=str(partition.config),
        ip_config=str(ip_config),
        log_dir=str(log_folder(out)),
        cwd=str(Path(__file__).resolve().parents[2] if layout.real is None else out),
        master_port=cluster.master_port,
        trainers=layout.trainers,
        samplers=layout.samplers,
        servers=layout.servers,
        env={"TUTORIAL_SEED": str(config.seed), **large_pages()},
        silence=getattr(cluster, "silence", None),
        collective_seconds=layout.collective_timeout,
        # In a container the host's /dev/shm has 64 MB; that of an emulated machine is its own.
        shm_of_trainers=_shm_of_trainers(partition, config) if isinstance(cluster, LocalCluster) else 0,
    )


def _delivery(partition: Partition, plan: JobPlan, cluster: Cluster, layout: Layout, out: Path) -> Delivery | None:
    """What machines that share no folder with this one get; None when they do."""
    if layout.real is None or layout.real.copy_to is None:
        return None
    assert isinstance(cluster, SshCluster)
    return Delivery.of_run(partition.folder, plan, cluster.folder(layout.real.copy_to), out)
