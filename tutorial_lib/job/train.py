"""A training run from the data set to ``result.json``, as ``python -m tutorial_lib train`` starts it."""

import os
import platform
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from tutorial_lib import __version__
from tutorial_lib.compat.stack import graphbolt_problem
from tutorial_lib.data import Dataset, default_root
from tutorial_lib.data.tables import read_ids, write_named_predictions
from tutorial_lib.errors import JobError
from tutorial_lib.files import JsonObject, write_json
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.display import SILENT, RunDisplay
from tutorial_lib.job.folder import CheckpointOptions, EventLog, open_run
from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.job.layout import Layout, run_on_machines
from tutorial_lib.job.remote_files import IP_CONFIG, JOB, fetch_results
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.checks import find_versions
from tutorial_lib.launcher.coordinator import MachineUse
from tutorial_lib.launcher.environment import CHECKOUT
from tutorial_lib.partition import Partition, dataset_description
from tutorial_lib.tasks import TASKS, check_data, uses_pipeline
from tutorial_lib.trainer.config import TrainConfig
from tutorial_lib.trainer.events import SCORES, summarize_phases

SAVING_SECONDS = 20.0  # Kubernetes and often Slurm allow 30 s between SIGTERM and SIGKILL


def run_distributed(
    source: DataSource | Partition,
    layout: Layout,
    config: TrainConfig,
    out: Path,
    display: RunDisplay = SILENT,
    checkpointing: CheckpointOptions = CheckpointOptions(),
) -> JsonObject:
    """Train on the machines of ``layout``, each with one part, and return the content of ``result.json``.

    An InputError reports a failed check before the start, and a JobFailed the first cause of a failure.
    """
    out = out.absolute()
    data = source.folder if isinstance(source, Partition) else source.root or default_root()
    backend = layout.make_backend(out, data)
    partition = get_partition(source, len(backend.machines), config, display)
    settings = describe_settings(partition, layout, config)
    if checkpointing.resume:  # the machines of a killed run can have a newer checkpoint
        for problem in fetch_results(out, display.log, backend, trust=checkpointing.trust):
            display.log(f"continuing without some results: {problem}")
    start = time.time()
    logs = out / "logs"
    if logs.exists():  # the logs of earlier starts stay
        logs /= f"resume-{len(list(logs.glob('resume-*'))) + 1}"
    agents = Agents(backend, logs, display.log)
    with open_run(out, display, checkpointing, settings) as event_log, backend, agents:
        job = {"train": config.to_dict(), "description": settings, "device": layout.device}
        write_json(out / JOB, {**job, "checkpoint_every": checkpointing.every, "resume": checkpointing.resume})
        write_ip_config(out / IP_CONFIG, backend.machines)
        dgl_job = describe_training(partition, backend, layout, config, out, logs)
        uploads = [(partition.folder, f"partitions/{partition.folder.name}", partition.config.parent)]
        usage = run_on_machines(agents, dgl_job, layout.limits(SAVING_SECONDS), out, event_log.write, uploads)
    facts = {
        "dataset_info": partition.manifest["dataset"],
        "config": config.to_dict(),
        "seconds": time.time() - start,
        "machines": len(backend.machines),
        "trainers_per_machine": layout.trainers,
        "servers_per_machine": layout.servers,
        "samplers_per_trainer": layout.samplers,
        "partition": asdict(partition.report),
    }
    return _write_result(out, facts, read_ids(partition.folder), event_log, usage)


def get_partition(source: DataSource | Partition, parts: int, config: TrainConfig, display: RunDisplay) -> Partition:
    """Return the given, an earlier or a new partition. An InputError reports data that do not suit the task."""
    task = TASKS[config.task]
    if isinstance(source, Partition):
        partition = source
    elif (existing := source.find_partition(parts, features=task.features)) is not None:
        partition = existing
        display.log(f"reusing {partition.folder}")
    else:  # no reference to the graph is kept, because the servers load the parts again
        partition = source.partition(_load(source, config, display), parts, display.log)
    report = partition.report
    display.log(f"{parts} part(s), {report.edge_cut_share:.1%} of the edges cut, train nodes {report.train_nodes}")
    check_data(config.task, partition.manifest["dataset"])
    if task.edge_ids and "edge_map.npy" not in partition.manifest["files"]:
        _ = partition.edge_map  # raises an error
    return partition


def describe_settings(partition: Partition, layout: Layout, config: TrainConfig) -> JsonObject:
    """Return the settings that ``--resume`` compares with those of the checkpoint."""
    return {
        "dataset": partition.manifest["dataset"]["name"],
        "data fingerprint": partition.manifest["fingerprint"][:16],
        "machines": partition.report.parts,
        "trainers": layout.trainers,
        "partition": partition.manifest["files"]["node_map.npy"]["sha256"][:16],
        **config.to_dict(),
    }


def _load(source: DataSource, config: TrainConfig, display: RunDisplay) -> Dataset:
    display.log(f"loading {source.name}")
    dataset = source.load(features=TASKS[config.task].features)
    check_data(config.task, dataset_description(dataset))
    graph = dataset.structure
    display.log(f"{graph.num_nodes():,} nodes, {graph.num_edges():,} directed edges, {dataset.num_features} features")
    return dataset


def describe_training(
    partition: Partition, backend: Backend, layout: Layout, config: TrainConfig, run: Path, logs: Path
) -> DglJob:
    """Return the job of a training in the run folder ``run``."""
    use_graphbolt = uses_pipeline(config, layout.samplers) and partition.has_graphbolt and graphbolt_problem() is None
    # Pages of 2 MB (glibc 2.35) spare a trainer's first step 100,000 page faults.
    huge_pages = {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    job = DglJob(
        machines=backend.machines,
        command=[sys.executable, "-m", "tutorial_lib.trainer", str(run / JOB), *["--use_graphbolt"] * use_graphbolt],
        part_config=str(partition.config),
        ip_config=str(run / IP_CONFIG),
        log_dir=str(logs),
        cwd=str(CHECKOUT if backend.traits.one_computer else run),
        master_port=backend.master_port,
        env={"TUTORIAL_SEED": str(config.seed), **huge_pages},
        forks=layout.device == "cpu",  # a process that forks must not have used CUDA
    )
    return layout.complete_job(job, backend)


def run_single(
    source: DataSource,
    config: TrainConfig,
    out: Path,
    display: RunDisplay = SILENT,
    checkpointing: CheckpointOptions = CheckpointOptions(),
    device: str = "cpu",
) -> JsonObject:
    """Train in this process alone, with the same outputs. A distributed run must agree with this one."""
    # Only this function needs torch. Without it, the process of `run_distributed` starts faster and stays small.
    from tutorial_lib.tasks.run import train_single
    from tutorial_lib.tasks.task import LocalShard
    from tutorial_lib.trainer.checkpoint import CheckpointManager, export_weights
    from tutorial_lib.trainer.placement import choose_device

    out = out.absolute()
    placement = choose_device(device)
    dataset = _load(source, config, display)
    _ = dataset.graph  # as in a distributed run, the time begins when the graph is in memory
    start = time.time()
    data = {"dataset": dataset.name, "data fingerprint": dataset.fingerprint()[:16]}
    settings = {**data, "machines": 1, "trainers": 1, "partition": "single process", **config.to_dict()}
    with open_run(out, display, checkpointing, settings) as event_log:

        def emit(kind: str, **fields: object) -> None:
            event_log.write({"kind": kind, "time": time.time(), "rank": 0, "local_rank": 0, **fields})

        write_json(out / JOB, {"train": config.to_dict(), "description": settings})
        emit("placed", **placement.describe())
        checkpoints = CheckpointManager(out / "checkpoint", settings, checkpointing.every, checkpointing.resume, emit)
        try:
            trained = train_single(LocalShard(dataset, placement, emit), config, checkpoints)
        except FloatingPointError as error:
            raise JobError(str(error)) from None
        export_weights(trained.model, config.to_dict(), out / "checkpoint")
        trained.save(out)
        emit("evaluation", **trained.summary())
    facts = {"dataset_info": dataset_description(dataset), "config": config.to_dict(), "seconds": time.time() - start}
    usage = {platform.node(): MachineUse(0, {"trainer": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})}
    return _write_result(out, {**facts, "machines": 1, "trainers_per_machine": 1}, dataset.ids, event_log, usage)


def _write_result(
    out: Path, facts: JsonObject, ids: pa.Array | None, event_log: EventLog, usage: dict[str, MachineUse]
) -> JsonObject:
    """Write ``result.json``, and the predictions by ID if the data set has ``ids``."""
    last_event = {event["kind"]: event for event in event_log.events}
    # Trainers resume fewer epochs than the checkpoint has if a file on another machine was damaged.
    resumed = event_log.resumed[: last_event["resumed"]["epochs"]] if "resumed" in last_event else []
    names = ("epoch", "loss", "seconds", "val_score", "val_accuracy")
    trained_epochs = [{name: event[name] for name in names} for event in event_log.events if event["kind"] == "epoch"]
    result = {
        **{"task": facts["config"]["task"], "dataset": facts["dataset_info"]["name"], **facts},
        "world_size": facts["machines"] * facts["trainers_per_machine"],
        "epochs": [*map(asdict, resumed), *trained_epochs],
        **{name: last_event["evaluation"][name] for name in SCORES},
        **{name: last_event["placed"][name] for name in ("device", "backend", "device_reason")},
        "bytes_sent": {name: used.bytes_sent for name, used in usage.items()},
        "peak_rss": {name: used.peak_rss for name, used in usage.items()},
        "resumed_epochs": len(resumed),  # seconds, bytes_sent, peak_rss and phases are of the last start
        "phases": summarize_phases(event_log.events),
        "versions": {"tutorial_lib": __version__, **find_versions(("torch", "dgl", "torchdata", "numpy"))},
    }
    write_json(out / "result.json", result)
    if ids is not None and (out / "predictions.npy").exists():
        classes = facts["dataset_info"].get("class_names", []) if TASKS[result["task"]].classes else []
        write_named_predictions(out, ids, classes)
    return result
