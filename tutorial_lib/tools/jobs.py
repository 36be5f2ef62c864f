"""``train``: a run from data set to one score. ``finale``: a scripted run. ``launch``: any script."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil

from tutorial_lib.data import check_dataset_arguments
from tutorial_lib.errors import InputError, JobError, ask_yes_no, print_to_stderr
from tutorial_lib.files import JsonObject
from tutorial_lib.job import launch as job_launch
from tutorial_lib.job.display import RunDisplay, human_bytes
from tutorial_lib.job.folder import CheckpointOptions, check_run_folder, default_run_folder
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.layout import Layout, SshMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.backends.emulated import EmulationUnavailable
from tutorial_lib.tasks import check_task
from tutorial_lib.tools import options as opts
from tutorial_lib.tools.options import about, app, flatten
from tutorial_lib.tools.plan import Job, estimate, job_sizes
from tutorial_lib.trainer.config import TrainConfig

NOT_IN_FINALE = "seed fanouts loader cache ahead task embedding_size embedding_learning_rate"
NOT_IN_LAUNCH = "ip_config device show_output out"
STARTED_RUNS: dict[str, Path] = {}  # command and folder of the run that this process has begun
LONG_RUN_SECONDS = 20 * 60
SECONDS_PER_EDGE = 3.2e-6  # to load and partition the data, and to evaluate the model, on two cores
# Mean and deviation of GraphSAGE with neighbor sampling: Hu et al. 2020 and the OGB leaderboard
PUBLISHED = {"valid accuracy": (0.9170, 0.0009), "test accuracy": (0.7870, 0.0036)}
PUBLISHED_NODES = 2_449_029  # a small graph in the format of ogbn-products may have its name


@app.command(
    help_epilogue="For example: train --emulate 2 --wire 200mbit --epochs 5; train --task link --dataset ogbn-arxiv; "
    "train --dataset my_graph --emulate 2; train --resume --out runs/mine. A graph of your own: docs/own-graph.md."
)
def train(
    *,
    source: Annotated[DataSource, flatten("Data", "method")] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", "seed fanouts cache")] = TrainConfig(),
    fanouts: opts.FanoutsOption = "15,10,5",
    cache: opts.CacheOption = "256MB",
    checkpointing: Annotated[CheckpointOptions, flatten("Training")] = CheckpointOptions(),
    layout: Annotated[Layout, flatten("Machines")] = Layout(),
    machines: opts.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: opts.OverSsh = None,
    single_process: Annotated[bool, about("Train in one process without DGL's servers, for comparison.")] = False,
    out: opts.OutOption = None,
    options: opts.GivenOptions,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    check_task(config.task)
    check_dataset_arguments(source.name, source.scale, source.seed)
    layout = opts.choose_machines(layout, ssh, options)
    if single_process and (layout.trainers, layout.samplers, layout.servers) != (1, 0, 1):
        raise InputError("--single-process cannot be used with --trainers, --samplers or --servers")
    config = opts.complete_config(config, source.seed, fanouts, cache)
    folder = check_run_folder(out or default_run_folder(source.name), resume=checkpointing.resume)
    from tutorial_lib.job.train import run_distributed, run_single  # only now: most mistakes are reported before

    STARTED_RUNS["train"] = folder
    checkpointing = replace(checkpointing, options=opts.options_to_store(options))
    display = RunDisplay(config.epochs)
    try:
        if single_process:
            result = run_single(source, config, folder, display, checkpointing, device=layout.device)
        else:
            result = run_distributed(source, layout, config, folder, display, checkpointing)
    except EmulationUnavailable as error:
        if options.keys() & {*opts.MACHINE_OPTIONS, "wire", "own_disks"}:  # the user has asked for emulated machines
            raise
        options |= {"machines": 1, "trainers": options.get("trainers", 2)}
        chosen = f"Continuing as train --machines 1 --trainers {options['trainers']}"
        print_to_stderr(f"warning: {error.message}. {error.remedy.splitlines()[0].rstrip('.')}. {chosen}")
        layout = replace(layout, emulate=None, trainers=options["trainers"])
        checkpointing = replace(checkpointing, options=opts.options_to_store(options))
        result = run_distributed(source, layout, config, folder, display, checkpointing)
    display.summary(result, folder)


@app.command
def finale(
    *,
    source: Annotated[DataSource, flatten("Data", "method", show_default=False)] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", NOT_IN_FINALE, show_default=False)] = TrainConfig(),
    fanouts: opts.FanoutsOption = "15,10,5",
    checkpointing: Annotated[CheckpointOptions, flatten("Training", "every")] = CheckpointOptions(),
    layout: Annotated[Layout, flatten("Machines", "show_output")] = Layout(),
    machines: opts.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: opts.OverSsh = None,
    full: Annotated[bool, about("Train on the whole graph with the recipe of the published accuracies.")] = False,
    out: opts.OutOption = None,
    yes: Annotated[bool, about("Start a large run without asking.")] = False,
    options: opts.GivenOptions,
) -> None:
    """Load and partition the data, check the machines, train, and check the predictions.

    By default, the finale trains 10 epochs on synthetic-products at scale 0.1. With --full, it trains at scale 1 with
    the published recipe: 20 epochs, 1024 seed nodes in a step of all trainers together, learning rate 0.003.
    """
    check_dataset_arguments(source.name, source.scale, source.seed)
    layout = opts.choose_machines(layout, ssh, options)
    backend = layout.make_backend()
    defaults: JsonObject = {"epochs": 10}
    if full:
        batch_size = math.ceil(1024 / (len(backend.machines) * layout.trainers))
        defaults = {"epochs": 20, "batch_size": batch_size, "learning_rate": 0.003}
    config = opts.complete_config(config, source.seed, fanouts, cache="256MB")
    config = replace(config, **{name: value for name, value in defaults.items() if name not in options})
    source = replace(source, scale=options.get("scale", 1.0 if full else 0.1))
    folder = check_run_folder(out or default_run_folder("finale"), resume=checkpointing.resume)
    if not checkpointing.resume:
        confirm_large_run(source, backend, layout.trainers, config, yes=yes)
    from tutorial_lib.job.train import run_distributed

    STARTED_RUNS["finale"] = folder
    display = RunDisplay(config.epochs)
    checkpointing = replace(checkpointing, options=opts.options_to_store(options))
    result = run_distributed(source, layout, config, folder, display, checkpointing)
    display.log("checking the predictions in original IDs")
    check_predictions(source, folder, result)
    display.summary(result, folder)
    for name, (mean, deviation) in published_accuracies(result).items():
        print(f"published {name}: {mean:.4f} ± {deviation:.4f}")


def confirm_large_run(source: DataSource, backend: Backend, trainers: int, config: TrainConfig, *, yes: bool) -> None:
    """Print an estimate, and ask before a run that takes more than 20 minutes or more memory than is available."""
    counts = {**job_sizes(source), "machines": len(backend.machines), "trainers": trainers}
    job = Job(**counts, config=config, together=backend.traits.one_computer)
    estimated = estimate(job)
    seconds = config.epochs * estimated.epoch * (1 + job.val / job.train / 2) + SECONDS_PER_EDGE * job.edges
    memory = human_bytes(round(estimated.memory["machine"]))
    needs = f"{memory} of memory on each machine, {max(1, round(seconds / 60))} min"
    sizes = f"{job.nodes:,} nodes, {job.edges:,} edges"
    print(f"estimate: {sizes}; about {needs} (the job may need half or twice as much)", flush=True)
    too_large = job.together and estimated.memory["all machines"] > psutil.virtual_memory().available
    if (seconds > LONG_RUN_SECONDS or too_large) and not yes and not ask_yes_no("This run is large. Start it?"):
        raise InputError("not started, because this run is large and was not confirmed", "Add --yes to start it.")


def check_predictions(source: DataSource, folder: Path, result: JsonObject) -> None:
    """Raise a JobError if the accuracies of predictions.npy are not those that the trainers counted."""
    data = source.load(features=False).target_data
    correct = np.load(folder / "predictions.npy") == data["label"].numpy()
    for name in ("val", "test"):
        accuracy, counted = correct[data[f"{name}_mask"].numpy().astype(bool)].mean(), result[f"{name}_accuracy"]
        if abs(accuracy - counted) > 1e-9:
            raise JobError(f"the {name} accuracy of predictions.npy is {accuracy}, but the trainers counted {counted}")


def published_accuracies(result: JsonObject) -> dict[str, tuple[float, float]]:
    """Return the published accuracies of the graph of a run, or nothing for other graphs."""
    is_full_graph = result["dataset"] == "ogbn-products" and sum(result["partition"]["nodes"]) == PUBLISHED_NODES
    return PUBLISHED if is_full_graph else {}


@app.command
def launch(
    command: Annotated[list[str], about('The script and its arguments: "python3 train.py --lr 0.01".')],
    /,
    *,
    request: Annotated[LaunchRequest, flatten("Machines", NOT_IN_LAUNCH, opts.dgl_option_name)] = LaunchRequest(),
    machines: opts.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: opts.OverSsh = None,
    verbose: Annotated[bool, about("Print the variables that are added to the environment.")] = False,
    quiet: Annotated[bool, about("Write the output of the script to its logs only.")] = False,
    out: Annotated[Path | None, about("Folder of the logs. (default: runs/TIME-launch-XXXX)")] = None,
    options: opts.GivenOptions,
) -> None:
    """Run any DistDGL script, or without --part_config any torch.distributed program, and show its output.

    With --part_config, launch writes the file of --ip_config (default: ip_config.txt), except for machines over ssh.
    """
    ssh = ssh or SshMachines()
    ssh_machines = None
    options.pop("ip_config", None)  # a script reads this file in every place
    if not opts.MACHINE_OPTIONS & options.keys():
        options["ip_config"] = ssh.ip_config
        ssh_machines = replace(ssh, ip_config=(request.workspace / ssh.ip_config).resolve())
    request = opts.choose_machines(request, ssh_machines, options)
    out = check_run_folder(out or default_run_folder("launch"))
    request = replace(request, command=command, out=out, ip_config=ssh.ip_config, show_output=not quiet)
    usage = job_launch.launch(request, RunDisplay(), verbose=verbose)
    logs = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
    for machine, used in usage.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {logs / machine}")
