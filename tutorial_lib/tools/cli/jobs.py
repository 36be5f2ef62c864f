"""``train``: a run from data set to one score. ``finale``: a scripted run. ``launch``: any script."""

import math
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.job.display import RunDisplay, human_bytes
from tutorial_lib.job.folder import OPTIONS_FILE, Continuation, check_run_folder, continue_command, default_run_folder
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.launch import launch as run_launch
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.launcher.backends.emulated import EmulationUnavailable
from tutorial_lib.launcher.environment import describe_environment
from tutorial_lib.tasks import check_task
from tutorial_lib.tools.cli import options as cli
from tutorial_lib.tools.cli.options import about, app, flatten
from tutorial_lib.tools.published import beside_published, is_published_graph
from tutorial_lib.trainer.config import TrainConfig

OF_TRAIN = "seed fanouts loader cache ahead task embedding_size embedding_learning_rate"  # no options of finale
OF_LAUNCH = "ip_config device show_output server_threads out"  # fields of LaunchRequest that are no options
RUNNING: list[Path] = []  # folder of the run of `train` that this process has begun


def commands_to_continue() -> list[str]:
    """Return a line with the command that continues the run that was broken off, if it has a checkpoint."""
    commands = [continue_command("train", folder) for folder in RUNNING]
    return [f"to continue: {command}" for command in commands if command]


@app.command(
    help_epilogue="For example: train --emulate 2 --wire 200mbit --epochs 5; train --task link --dataset ogbn-arxiv; "
    "train --dataset my_graph --emulate 2; train --resume --out runs/mine. A graph of your own: docs/own-graph.md."
)
def train(
    *,
    source: Annotated[DataSource, flatten("Data", "method")] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", "seed fanouts cache")] = TrainConfig(),
    fanouts: cli.FanoutsOption = "15,10,5",
    cache: cli.CacheOption = "256MB",
    keep: Annotated[Continuation, flatten("Training")] = Continuation(),
    layout: Annotated[Layout, flatten("Machines")] = Layout(),
    machines: cli.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: cli.OverSsh = None,
    single_process: Annotated[bool, about("Train in one process without DGL's servers, for comparison.")] = False,
    out: Annotated[Path | None, about("Run folder. It must be new, except with --resume.")] = None,
    given: cli.Given,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    check_task(config.task)
    source.check()
    layout = cli.choose_machines(layout, ssh, given)
    if single_process and (layout.trainers, layout.samplers, layout.servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    config = cli.complete_config(config, source.seed, fanouts, cache, layout.samplers)
    folder = check_run_folder(out or default_run_folder(source.name), resume=keep.resume)
    from tutorial_lib.job.train import run_distributed, run_single  # with torch: most mistakes are reported before

    RUNNING.append(folder)
    keep = replace(keep, options=cli.storable(given))
    with RunDisplay() as display:
        try:
            if single_process:
                result = run_single(source, config, folder, display, keep, device=layout.device)
            else:
                result = run_distributed(source, layout, config, folder, display, keep)
        except EmulationUnavailable as error:
            if given.keys() & {*cli.PLACES, "wire"}:
                raise
            # The host forbids emulated machines, and the user has not asked for them.
            given |= {"machines": 1, "trainers": given.get("trainers", 2)}
            layout = replace(layout, emulate=None, trainers=given["trainers"])
            keep = replace(keep, options=cli.storable(given))
            chosen = f"This run is train --machines 1 --trainers {layout.trainers}"
            to_stderr(f"warning: {error.message}. {error.remedy.splitlines()[0]}. {chosen}")
            result = run_distributed(source, layout, config, folder, display, keep)
    display.summary(result, folder)


@app.command
def finale(
    *,
    source: Annotated[DataSource, flatten("Data", "method", show_default=False)] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", OF_TRAIN, show_default=False)] = TrainConfig(),
    fanouts: cli.FanoutsOption = "15,10,5",
    layout: Annotated[Layout, flatten("Machines", "show_output")] = Layout(),
    machines: cli.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: cli.OverSsh = None,
    keep: Annotated[Continuation, flatten("Training", "every")] = Continuation(),
    full: Annotated[bool, about("Train on the whole graph with the recipe of the published accuracies.")] = False,
    scaling: Annotated[str | None, about("Also train shortly on these numbers of machines, such as 1,2,4.")] = None,
    out: Annotated[Path | None, about("Folder. A finale that was interrupted there is continued.")] = None,
    yes: Annotated[bool, about("Start a large run without a question.")] = False,
    given: cli.Given,
) -> None:
    """Check the machines, load and partition the data, train, and check the predictions.

    By default, the finale trains 10 epochs on synthetic-products at scale 0.1. With --full, it trains at scale 1 with
    the published recipe: 20 epochs, 1024 seed nodes in a step of all trainers together, learning rate 0.003.
    """
    folder, display = out or default_run_folder("finale"), RunDisplay()
    if not (begun := (folder / OPTIONS_FILE).exists()) and keep.resume:
        raise InputError(f"--resume: no finale was started in {folder}")
    source.check()  # before it takes seconds to import torch and DGL
    counts = cli.parse_numbers("--scaling", scaling, "1,2,4") if scaling else ()
    layout = cli.choose_machines(layout, ssh, given)
    from tutorial_lib.tools.finale import Finale

    defaults: dict[str, Any] = {"epochs": 10}
    if full:
        world_size = len(layout.cluster().machines) * layout.trainers
        defaults = {"epochs": 20, "batch_size": math.ceil(1024 / world_size), "learning_rate": 0.003}
    config = cli.complete_config(config, source.seed, fanouts)
    config = replace(config, **{name: value for name, value in defaults.items() if name not in given})
    source = replace(source, scale=given.get("scale", 1.0 if full else 0.1))
    run = Finale(source, layout, config, tuple(sorted({*counts})), folder, display, keep.trust)
    if not begun:
        run.confirm(yes=yes)
    with display:
        result = run.run(cli.storable(given))
    display.summary(result, folder)
    if is_published_graph(source.name, sum(result["partition"]["nodes"])):
        print(*(f"{name}: {ours}, published: {theirs}" for name, ours, theirs in beside_published(result)), sep="\n")
    if find_spec("support") is not None:  # of the lessons
        print(f"report:     python -m support.finale_report {shlex.quote(str(folder))}")


@app.command
def launch(
    command: Annotated[list[str], about('The script and its arguments: "python3 train.py --lr 0.01".')],
    /,
    *,
    request: Annotated[LaunchRequest | None, flatten("Machines", OF_LAUNCH, cli.dgl_option_name)] = None,
    machines: cli.MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: cli.OverSsh = None,
    verbose: Annotated[bool, about("Print the variables that are added to the environment.")] = False,
    quiet: Annotated[bool, about("Write the output of the script to its logs only.")] = False,
    out: Annotated[Path | None, about("Folder of the logs. (default: runs/TIME-launch-XXXX)")] = None,
    given: cli.Given,
) -> None:
    """Run any DistDGL script, or without --part_config any torch.distributed program, and show its output.

    With --emulate, the file of --ip_config (default: ip_config.txt) is written if it does not exist.
    """
    request, ssh, real = request or LaunchRequest(), ssh or RealMachines(), None
    given.pop("ip_config", None)
    if not cli.PLACES & given.keys():
        given["ip_config"] = ssh.ip_config
        real = replace(ssh, ip_config=(request.workspace / ssh.ip_config).resolve())
    request = cli.choose_machines(request, real, given)
    out = out or default_run_folder("launch")
    request = replace(
        request, command=command, out=check_run_folder(out), ip_config=ssh.ip_config, show_output=not quiet
    )
    with RunDisplay() as display:
        show = lambda plan: display.console.print(describe_environment(plan.to_spec()), soft_wrap=True)  # noqa: E731
        use = run_launch(request, display, *([show] if verbose else []))
    logs = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {logs / machine}")
