"""``train``: a run from data set to one global accuracy. ``finale``: the scripted multi-machine run, with a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.data import default_root
from tutorial_lib.errors import InputError, TutorialError
from tutorial_lib.job.display import RunDisplay, comparison_table
from tutorial_lib.job.folder import Continuation, default_run_folder
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.job.source import DataSource
from tutorial_lib.tasks import check_task
from tutorial_lib.tools.cli.options import (
    LARGEST,
    Given,
    MachinesOption,
    app,
    check_machines,
    filling,
    parse_machine_counts,
    real_machines,
)
from tutorial_lib.trainer.config import TrainConfig

QUICK_SCALE, QUICK_EPOCHS = 0.1, 10


@app.command()
@filling(
    *(DataSource, Layout, RealMachines, TrainConfig, Continuation),
    without=["method"],
    dataset="synthetic-products",
    emulate=None,
)
def train(
    given: Given,
    machines: MachinesOption = None,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="No servers, no ranks: the plain loop, to compare with.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; must not exist yet, but for --resume. (default: runs/TIME-NAME-XXXX)"),
    ] = None,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    from tutorial_lib.job.train import run_distributed, run_single
    from tutorial_lib.trainer.config import check_loader

    check_task(given.task)
    check_machines(
        emulate=given.emulate,
        machines=machines,
        ip_config=given.ip_config,
        single_process=single_process,
        wire=given.wire,
        ssh=(given.ssh_port, given.ssh_username, given.copy_to),
    )
    if single_process and (given.trainers, given.samplers, given.servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    if given.resume and out is None:
        raise InputError("--resume needs --out, the folder of the run to continue")
    config = given.make(TrainConfig, cache=check_loader(given.loader, given.samplers, given.cache))
    real = real_machines(given, given.ip_config)
    if real is None and not single_process and machines is None and given.emulate is None:
        given.emulate = 2
    source, keep = given.make(DataSource), given.make(Continuation)
    folder = keep.folder(out or default_run_folder(source.name))
    with RunDisplay() as display:
        if single_process:
            result = run_single(source, config, folder, display, keep, device=given.device)
        else:
            result = run_distributed(source, given.make(Layout, real=real), config, folder, display, keep)
    display.summary(result, folder)


@app.command()
@filling(
    *(DataSource, Layout, RealMachines, TrainConfig),
    without=["method", "task", "embedding_size", "embedding_learning_rate", "loader", "cache", "ahead", "half_wire"],
)
def finale(
    given: Given,
    dataset: Annotated[
        str | None, typer.Option(help="(default: ogbn-products if present, else synthetic-products)")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The complete recipe: the whole graph, 20 epochs. Over an hour on 2 cores.")
    ] = False,
    emulate: Annotated[int | None, typer.Option(help="Number of emulated machines. (default: 2)")] = None,
    machines: MachinesOption = None,
    wire: Annotated[str | None, typer.Option(help="Rate of the emulated wire: 200mbit; none. (default: 1gbit)")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Size of synthetic-products, 0.002 to 1.0. (default: 0.1)")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="(default: 10)")] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Machines of the short scaling runs, or none. (default: 1,2,4; ogbn-products: none)"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; that of an unfinished finale continues it. (default: runs/TIME-finale-XXXX)"),
    ] = None,
) -> None:
    """Machines, data, partition, training, predictions, scaling, report; again with the same --out, it continues."""
    from tutorial_lib.data.ogb import is_present
    from tutorial_lib.tools.finale import FULL_EPOCHS, FULL_SCALE, Finale, FinaleSettings, FolderRefused

    ssh = (given.ssh_port, given.ssh_username, given.copy_to)
    check_machines(emulate=emulate, machines=machines, ip_config=given.ip_config, wire=wire, ssh=ssh)
    real = real_machines(given, given.ip_config)
    if real is None and machines is None:
        emulate, wire = 2 if emulate is None else emulate, None if wire == "none" else wire or "1gbit"
    layout = given.make(Layout, emulate=emulate, wire=wire, real=real)
    root = given.root or default_root()
    if dataset is None:  # a scale is one of the generated graph
        real_data = is_present("ogbn-products", root) and scale is None
        dataset = "ogbn-products" if real_data else "synthetic-products"
    if scale is not None and dataset != "synthetic-products":
        raise InputError(f"--scale is for synthetic-products; {dataset} has one size")
    available = len(layout.cluster().machines) if real else 1 if machines else 4
    counts = tuple(k for k in (1, 2, 4) if k <= available) if dataset != "ogbn-products" else ()
    if scale is None:
        scale = FULL_SCALE if full else QUICK_SCALE
    settings = FinaleSettings(
        source=given.make(DataSource, name=dataset, scale=scale, root=root),
        layout=layout,
        config=given.make(TrainConfig, epochs=epochs or (FULL_EPOCHS if full else QUICK_EPOCHS)),
        scaling=counts if scaling is None else parse_machine_counts(scaling),
    )
    folder = out or default_run_folder("finale")
    try:
        with RunDisplay() as display:
            result = Finale(settings, folder, display).run()
    except FolderRefused:
        raise
    except (TutorialError, KeyboardInterrupt, SystemExit, OSError):
        if (folder / "finale.json").exists():
            print(f"finished steps are kept; the same command with --out {folder} continues", file=sys.stderr)
        raise
    display.summary(result, folder)
    display.console.print(comparison_table(result))
    display.console.print(f"report:     {folder / 'report.html'}", soft_wrap=True)
