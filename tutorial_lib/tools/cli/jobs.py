"""``train``: a run from data set to one score. ``finale``: a scripted run. ``launch``: any script."""

from __future__ import annotations

import math
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.cluster.emulated import EmulationUnavailable
from tutorial_lib.cluster.environment import describe_environment
from tutorial_lib.data import DEFAULT_SCALE, check_arguments, default_root
from tutorial_lib.errors import InputError, to_stderr
from tutorial_lib.job.display import RunDisplay, human_bytes
from tutorial_lib.job.folder import OPTIONS_FILE, Continuation, check_run_folder, continue_command, default_run_folder
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.launch import launch as run_launch
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.tasks import check_task
from tutorial_lib.tools.cli.options import OF_TRAIN, Given, MachinesOption, app, check_machines, filling
from tutorial_lib.tools.published import comparison_table
from tutorial_lib.trainer.config import TrainConfig, check_loader

RUNNING: list[Path] = []  # folder of the run of `train` that this process has begun


def command_to_continue() -> str:
    """Return the command that continues the run that was broken off, or an empty text if it has no checkpoint."""
    return continue_command("train", RUNNING[-1]) if RUNNING else ""


@app.command(
    epilog="For example: train --emulate 2 --wire 200mbit --epochs 5; train --task link --dataset ogbn-arxiv; "
    "train --dataset my_graph --emulate 2; train --resume --out runs/mine. A graph of your own: docs/own-graph.md."
)
@filling(
    *(DataSource, Layout, RealMachines, TrainConfig, Continuation),
    without=["method"],
    chosen={"emulate": "2"},
    dataset="synthetic-products",
)
def train(
    given: Given,
    machines: MachinesOption = None,  # noqa: ARG001  see ``check_machines``
    single_process: Annotated[
        bool, typer.Option("--single-process", help="No servers, no ranks: the plain loop, to compare with.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; must not exist yet, but for --resume. (default: runs/TIME-NAME-XXXX)"),
    ] = None,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    if given.resume and out is None:
        raise InputError("--resume needs --out, the folder of the run to continue")
    check_task(given.task)
    options = given.to_json()
    source = given.make(DataSource)
    source.check()
    places = (given.emulate, given.on, given.machines, given.ip_config, given.slurm, given.wire, single_process)
    check_machines(given)
    if single_process and (given.trainers, given.samplers, given.servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    config = given.make(TrainConfig, cache=check_loader(given.loader, given.samplers, given.cache))
    keep = given.make(Continuation, options=options)
    folder = keep.folder(out or default_run_folder(source.name), config)
    from tutorial_lib.job.train import run_distributed, run_single  # with torch: most mistakes are told before

    RUNNING.append(folder)
    with RunDisplay() as display:
        if single_process:
            result = run_single(source, config, folder, display, keep, device=given.device)
        else:
            more = (config, folder, display, keep)
            try:
                result = run_distributed(source, given.make(Layout), *more)
            except EmulationUnavailable as error:
                if any(places):
                    raise
                stay_here(given, error)
                options |= {"machines": given.machines, "trainers": given.trainers}
                result = run_distributed(source, given.make(Layout), *more)
    display.summary(result, folder)


def stay_here(given: Given, error: EmulationUnavailable) -> None:
    """Choose this machine with two trainers, because the host forbids emulated machines, which nobody asked for."""
    given.emulate, given.machines, given.trainers = None, 1, given.trainers if "trainers" in given.said else 2
    chosen = f"--machines 1 --trainers {given.trainers}"
    to_stderr(f"warning: {error.message}. {error.remedy.splitlines()[0]}. This run is train {chosen}")


def parse_machine_counts(text: str) -> tuple[int, ...]:
    """``"1,2,4"`` to numbers of machines, in order and without repeats; ``"none"`` to none."""
    if text == "none":
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InputError(f"--scaling {text!r} is not a list of numbers of machines", "Example: 1,2,4") from None


@app.command()
@filling(
    *(DataSource, Layout, RealMachines, TrainConfig),
    without=["method", "show_output", "loader", "cache", "ahead", *OF_TRAIN],
    chosen={
        "dataset": "ogbn-products if present, else synthetic-products",
        "scale": "0.1",
        "emulate": "2",
        "wire": "1gbit; none: not shaped",
        "epochs": "10; published recipe: 20",
        "batch_size": "1000; published recipe: 1024 of all trainers together",
        "learning_rate": "0.006; published recipe: 0.003",
    },
)
def finale(
    given: Given,
    machines: MachinesOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="The whole graph and the published recipe, which ogbn-products gets anyway.")
    ] = False,
    scaling: Annotated[
        str | None,
        typer.Option(help="Machines of the short scaling runs, or none. (default: 1,2,4; ogbn-products: none)"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; that of an unfinished finale continues it. (default: runs/TIME-finale-XXXX)"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the finale in --out, with the options that it was started with.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start without a question, however large it is.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume, use what the folder names, without a question.")
    ] = False,
) -> None:
    """Check the machines, load and partition the data, train, check the predictions, and train on other numbers of
    machines. --resume --out continues after an interruption.
    """
    if resume and (out is None or not (out / OPTIONS_FILE).exists()):
        raise InputError("--resume needs --out, the folder of a finale that was started")
    options = given.to_json()
    if given.dataset is not None:
        check_arguments(given.dataset, DEFAULT_SCALE, given.seed)  # before it takes seconds to import torch and DGL
    from tutorial_lib.data.ogb import is_present
    from tutorial_lib.tools.finale import Finale

    check_machines(given)
    if given.emulate is not None:
        given.wire = None if given.wire == "none" or given.on else given.wire or "1gbit"
    layout = given.make(Layout)
    given.root = given.root or default_root()
    if given.dataset is None:  # a scale is one of the generated graph
        real_data = given.scale is None and is_present("ogbn-products", given.root)
        given.dataset = "ogbn-products" if real_data else "synthetic-products"
        options["dataset"] = given.dataset  # what is downloaded meanwhile does not change what is continued
    if given.scale is not None and given.dataset != "synthetic-products":
        raise InputError(f"--scale is for synthetic-products; {given.dataset} has one size")
    parts = len(layout.cluster().machines)
    available = parts if layout.real or layout.on or layout.slurm else 1 if machines else 4
    counts = tuple(k for k in (1, 2, 4) if k <= available) if given.dataset != "ogbn-products" else ()
    if given.scale is None:
        given.scale = 1.0 if full else 0.1
    defaults = {"epochs": 10, "batch_size": TrainConfig.batch_size, "learning_rate": TrainConfig.learning_rate}
    if full or given.dataset == "ogbn-products":  # the published recipe: 1024 seed nodes in a step of all trainers
        defaults = {"epochs": 20, "batch_size": math.ceil(1024 / (parts * layout.trainers)), "learning_rate": 0.003}
    for name, value in defaults.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    scaling_counts = counts if scaling is None else parse_machine_counts(scaling)
    folder, display = out or default_run_folder("finale"), RunDisplay()
    run = Finale(given.make(DataSource), layout, given.make(TrainConfig), scaling_counts, folder, display, trust)
    if not (folder / OPTIONS_FILE).exists():
        run.confirm(yes=yes)
    with display:
        result = run.run(options)
    display.summary(result, folder)
    display.console.print(comparison_table(result), soft_wrap=True)
    if find_spec("support") is not None:  # of the lessons
        command = f"python -m support.finale_report {shlex.quote(str(folder))}"
        display.console.print(f"report:     {command}", soft_wrap=True)


@app.command(context_settings={"allow_interspersed_args": False})
@filling(
    *(LaunchRequest, RealMachines),
    without=["device", "show_output", "server_threads"],
    ip_config=Path("ip_config.txt"),
    workspace=Path(),
)
def launch(
    given: Given,
    command: Annotated[list[str], typer.Argument(help='The script and its arguments: "python3 train.py --lr 0.01".')],
    machines: MachinesOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what is added to the environment.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="What the script prints goes to its logs only.")] = False,
) -> None:
    """Run any DistDGL script, or without --part_config any torch.distributed program, on emulated or real machines."""
    addresses, over_ssh = given.ip_config, given.emulate is None and machines is None and not (given.on or given.slurm)
    given.ip_config = (given.workspace / addresses).resolve() if over_ssh else None
    check_machines(given)
    out = check_run_folder(given.out or default_run_folder("launch"))
    request = given.make(LaunchRequest, command=command, out=out, ip_config=addresses, show_output=not quiet)
    with RunDisplay() as display:
        show = lambda plan: display.console.print(describe_environment(plan.to_spec()), soft_wrap=True)  # noqa: E731
        use = run_launch(request, display.on_event, *([show] if verbose else []))
    logs = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {logs / machine}")
