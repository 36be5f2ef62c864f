"""``train``: a run from data set to one score. ``finale``: a scripted run. ``launch``: any script."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tutorial_lib.data import DEFAULT_SCALE, check_arguments, default_root
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
from tutorial_lib.tools.cli.options import (
    PLACES,
    CacheOption,
    FanoutsOption,
    Given,
    MachinesOption,
    OverSsh,
    app,
    choose_machines,
    dgl_option_name,
    flatten,
    parse_fanouts,
    to_json,
)
from tutorial_lib.tools.published import comparison_table
from tutorial_lib.trainer.config import TrainConfig, check_loader

OF_TRAIN = "seed fanouts loader cache ahead task embedding_size embedding_learning_rate"  # no options of finale
RUNNING: list[Path] = []  # folder of the run of `train` that this process has begun


def command_to_continue() -> str:
    """Return the command that continues the run that was broken off, or an empty text if it has no checkpoint."""
    return continue_command("train", RUNNING[-1]) if RUNNING else ""


@app.command(
    help_epilogue="For example: train --emulate 2 --wire 200mbit --epochs 5; train --task link --dataset ogbn-arxiv; "
    "train --dataset my_graph --emulate 2; train --resume --out runs/mine. A graph of your own: docs/own-graph.md."
)
def train(
    *,
    source: Annotated[DataSource, flatten("Data", "method")] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", "seed fanouts cache")] = TrainConfig(),
    fanouts: FanoutsOption = "15,10,5",
    cache: CacheOption = "256MB",
    keep: Annotated[Continuation, flatten("Training")] = Continuation(),
    layout: Annotated[Layout, flatten("Machines")] = Layout(),
    machines: MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: OverSsh = None,
    single_process: Annotated[bool, Parameter(help="No servers, no ranks: the plain loop, to compare with.")] = False,
    out: Annotated[Path | None, Parameter(help="Run folder; must be new, except with --resume.")] = None,
    given: Given,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    if keep.resume and out is None:
        raise InputError("--resume needs --out, the folder of the run to continue")
    check_task(config.task)
    source.check()
    layout = choose_machines(layout, ssh, given)
    if single_process and (layout.trainers, layout.samplers, layout.servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    memory = check_loader(config.loader, layout.samplers, cache)
    config = replace(config, seed=source.seed, fanouts=parse_fanouts(fanouts), cache=memory)
    keep = replace(keep, options=to_json(given))
    folder = check_run_folder(out or default_run_folder(source.name), resume=keep.resume)
    from tutorial_lib.job.train import run_distributed, run_single  # with torch: most mistakes are reported before

    RUNNING.append(folder)
    with RunDisplay() as display:
        if single_process:
            result = run_single(source, config, folder, display, keep, device=layout.device)
        else:
            try:
                result = run_distributed(source, layout, config, folder, display, keep)
            except EmulationUnavailable as error:
                if given.keys() & {*PLACES, "wire"}:
                    raise
                # The host forbids emulated machines, and the user has not asked for them.
                given |= {"machines": 1, "trainers": layout.trainers if "trainers" in given else 2}
                layout = replace(layout, emulate=None, trainers=given["trainers"])
                keep = replace(keep, options=to_json(given))
                chosen = f"This run is train --machines 1 --trainers {layout.trainers}"
                to_stderr(f"warning: {error.message}. {error.remedy.splitlines()[0]}. {chosen}")
                result = run_distributed(source, layout, config, folder, display, keep)
    display.summary(result, folder)


def parse_machine_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of machines in ``"1,2,4"``, in order and without repeats, or nothing for ``"none"``."""
    if text == "none":
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InputError(f"--scaling {text!r} is not a list of numbers of machines", "Example: 1,2,4") from None


@app.command
def finale(
    *,
    source: Annotated[DataSource, flatten("Data", "method", show_default=False)] = DataSource(),
    config: Annotated[TrainConfig, flatten("Training", OF_TRAIN, show_default=False)] = TrainConfig(),
    fanouts: FanoutsOption = "15,10,5",
    layout: Annotated[Layout, flatten("Machines", "show_output")] = Layout(),
    machines: MachinesOption = None,
    ssh: OverSsh = None,
    full: Annotated[bool, Parameter(help="The whole graph and the published recipe.")] = False,
    scaling: Annotated[str | None, Parameter(help="Machines of the short scaling runs, like 1,2,4, or none.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder. That of an unfinished finale continues it.")] = None,
    resume: Annotated[bool, Parameter(help="Continue the finale in --out, with the options of its start.")] = False,
    yes: Annotated[bool, Parameter(help="Start without a question, however large it is.")] = False,
    trust: Annotated[bool, Parameter(help="With --resume, use what the folder names, without a question.")] = False,
    given: Given,
) -> None:
    """Check the machines, load and partition the data, train, check the predictions, and train on other numbers of
    machines. --resume --out continues after an interruption.

    By default, the data set is ogbn-products if it is present. Then, and with --full, the finale trains with the
    published recipe: 20 epochs, 1024 seed nodes of all trainers together, learning rate 0.003. Otherwise it trains 10
    epochs on synthetic-products at scale 0.1 with the defaults of train. The default wire is 1gbit (none: not shaped).
    """
    if resume and (out is None or not (out / OPTIONS_FILE).exists()):
        raise InputError("--resume needs --out, the folder of a finale that was started")
    if "dataset" in given:
        check_arguments(source.name, DEFAULT_SCALE, source.seed)  # before it takes seconds to import torch and DGL
    from tutorial_lib.data.ogb import is_present
    from tutorial_lib.tools.finale import Finale

    layout = choose_machines(layout, ssh, given)
    if layout.emulate is not None:
        layout = replace(layout, wire=None if layout.wire == "none" or layout.on else layout.wire or "1gbit")
    root = source.root or default_root()
    source = replace(source, root=root)
    if "dataset" not in given:  # a scale is one of the generated graph
        real_data = "scale" not in given and is_present("ogbn-products", root)
        source = replace(source, name="ogbn-products" if real_data else "synthetic-products")
        given["dataset"] = source.name  # a download in the meantime does not change the data set of --resume
    if "scale" not in given:
        source = replace(source, scale=1.0 if full else 0.1)
    elif source.name != "synthetic-products":
        raise InputError(f"--scale is for synthetic-products; {source.name} has one size")
    parts = len(layout.cluster().machines)
    available = parts if layout.real or layout.on or layout.slurm else 1 if machines else 4
    counts = tuple(k for k in (1, 2, 4) if k <= available) if source.name != "ogbn-products" else ()
    defaults: dict[str, Any] = {"epochs": 10}
    if full or source.name == "ogbn-products":  # the published recipe: 1024 seed nodes in a step of all trainers
        defaults = {"epochs": 20, "batch_size": math.ceil(1024 / (parts * layout.trainers)), "learning_rate": 0.003}
    defaults = {name: value for name, value in defaults.items() if name not in given}
    config = replace(config, seed=source.seed, fanouts=parse_fanouts(fanouts), **defaults)
    folder, display = out or default_run_folder("finale"), RunDisplay()
    finale_run = Finale(
        source, layout, config, counts if scaling is None else parse_machine_counts(scaling), folder, display, trust
    )
    if not (folder / OPTIONS_FILE).exists():
        finale_run.confirm(yes=yes)
    with display:
        result = finale_run.run(to_json(given))
    display.summary(result, folder)
    display.console.print(comparison_table(result), soft_wrap=True)
    if find_spec("support") is not None:  # of the lessons
        command = f"python -m support.finale_report {shlex.quote(str(folder))}"
        display.console.print(f"report:     {command}", soft_wrap=True)


@app.command
def launch(
    command: Annotated[list[str], Parameter(help='The script and its arguments: "python3 train.py --lr 0.01".')],
    /,
    *,
    request: Annotated[
        LaunchRequest | None, flatten("Machines", "ip_config device show_output server_threads out", dgl_option_name)
    ] = None,
    machines: MachinesOption = None,  # noqa: ARG001  see choose_machines
    ssh: OverSsh = None,
    verbose: Annotated[bool, Parameter(help="Print what is added to the environment.")] = False,
    quiet: Annotated[bool, Parameter(help="What the script prints goes to its logs only.")] = False,
    out: Annotated[Path | None, Parameter(help="Folder of the logs. (default: runs/TIME-launch-XXXX)")] = None,
    given: Given,
) -> None:
    """Run any DistDGL script, or without --part_config any torch.distributed program, and show its output.

    With --emulate, the file of --ip_config (default: ip_config.txt) is written if it does not exist.
    """
    request, ssh, real = request or LaunchRequest(), ssh or RealMachines(), None
    given.pop("ip_config", None)
    if not PLACES & given.keys():
        given["ip_config"] = ssh.ip_config
        real = replace(ssh, ip_config=(request.workspace / ssh.ip_config).resolve())
    request = choose_machines(request, real, given)
    out = check_run_folder(out or default_run_folder("launch"))
    request = replace(request, command=command, out=out, ip_config=ssh.ip_config, show_output=not quiet)
    with RunDisplay() as display:
        show = lambda plan: display.console.print(describe_environment(plan.to_spec()), soft_wrap=True)  # noqa: E731
        use = run_launch(request, display, *([show] if verbose else []))
    logs = out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {logs / machine}")
