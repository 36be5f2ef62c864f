"""``finale``: the scripted multi-machine run, step by step, with a report at its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.data import default_root
from tutorial_lib.errors import InputError, TutorialError
from tutorial_lib.job.display import RunDisplay
from tutorial_lib.job.result import default_run_folder
from tutorial_lib.tools.cli.app import app
from tutorial_lib.tools.cli.options import (
    LARGEST,
    BatchSizeOption,
    CollectiveOption,
    CopyToOption,
    DeviceOption,
    FanoutsOption,
    HiddenSizeOption,
    IpConfigOption,
    LearningRateOption,
    MachinesOption,
    MaxMemoryOption,
    PublicOption,
    RemotePythonOption,
    RootOption,
    SamplersOption,
    SeedOption,
    ServersOption,
    ServingOption,
    SshPortOption,
    SshUserOption,
    StallOption,
    TrainersOption,
    check_machines,
    parse_fanouts,
    parse_machine_counts,
    real_machines,
)

QUICK_SCALE, QUICK_EPOCHS = 0.1, 10


@app.command()
def finale(
    dataset: Annotated[
        str | None, typer.Option(help="(default: ogbn-products if present, else synthetic-products)")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="The complete recipe: the whole graph, 20 epochs. Over an hour on 2 cores."),
    ] = False,
    emulate: Annotated[int | None, typer.Option(help="Number of emulated machines. (default: 2)")] = None,
    machines: MachinesOption = None,
    ip_config: IpConfigOption = None,
    wire: Annotated[str | None, typer.Option(help="Rate of the emulated wire: 200mbit; none. (default: 1gbit)")] = None,
    trainers: TrainersOption = 1,
    samplers: SamplersOption = 0,
    servers: ServersOption = 1,
    scale: Annotated[
        float | None, typer.Option(help="Size of synthetic-products, 0.002 to 1.0. (default: 0.1)")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="(default: 10)")] = None,
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchSizeOption = 1000,
    hidden_size: HiddenSizeOption = 256,
    learning_rate: LearningRateOption = 0.006,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    scaling: Annotated[
        str | None,
        typer.Option(help="Machines of the short scaling runs, or none. (default: 1,2,4; ogbn-products: none)"),
    ] = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    copy_to: CopyToOption = None,
    allow_public: PublicOption = False,
    stall_timeout: StallOption = 120.0,
    serving_timeout: ServingOption = 300.0,
    collective_timeout: CollectiveOption = 600.0,
    max_memory: MaxMemoryOption = None,
    root: RootOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; that of an unfinished finale continues it. (default: runs/TIME-finale-XXXX)"),
    ] = None,
) -> None:
    """Machines, data, partition, training, predictions, scaling, report; again with the same --out, it continues."""
    from tutorial_lib.data.ogb import is_present
    from tutorial_lib.job.display import comparison_table
    from tutorial_lib.job.layout import Layout, cluster_of
    from tutorial_lib.job.train import DataSource
    from tutorial_lib.tools.finale import FULL_EPOCHS, FULL_SCALE, FinaleSettings, FolderRefused, run_finale
    from tutorial_lib.trainer.config import TrainConfig

    check_machines(
        emulate=emulate,
        machines=machines,
        ip_config=ip_config,
        wire=wire,
        ssh=(ssh_port, ssh_username, copy_to),
    )
    real = real_machines(ip_config, ssh_port, ssh_username, remote_python, copy_to, allow_public)
    if real is None and machines is None:
        emulate, wire = 2 if emulate is None else emulate, None if wire == "none" else wire or "1gbit"
    root = root or default_root()
    if dataset is None:  # a scale is one of the generated graph
        real_data = is_present("ogbn-products", root) and scale is None
        dataset = "ogbn-products" if real_data else "synthetic-products"
    if scale is not None and dataset != "synthetic-products":
        raise InputError(f"--scale is for synthetic-products; {dataset} has one size")
    available = len(cluster_of(None, None, real, servers).machines) if real else 1 if machines else 10**6
    counts = tuple(k for k in (1, 2, 4) if k <= available) if dataset != "ogbn-products" else ()
    if scaling is not None:
        counts = parse_machine_counts(scaling)
    if scale is None:
        scale = FULL_SCALE if full else QUICK_SCALE
    limits = (serving_timeout, collective_timeout)
    settings = FinaleSettings(
        source=DataSource(dataset, scale=scale, seed=seed, root=root, max_memory=max_memory),
        layout=Layout(emulate, wire, trainers, samplers, servers, real, stall_timeout or None, device, *limits),
        config=TrainConfig(
            epochs=epochs or (FULL_EPOCHS if full else QUICK_EPOCHS),
            fanouts=parse_fanouts(fanouts),
            batch_size=batch_size,
            hidden_size=hidden_size,
            learning_rate=learning_rate,
            seed=seed,
        ),
        scaling=counts,
    )
    folder = out or default_run_folder("finale")
    try:
        with RunDisplay(settings.config.epochs) as display:
            result = run_finale(settings, folder, display)
    except FolderRefused:
        raise
    except (TutorialError, KeyboardInterrupt, SystemExit, OSError):
        if (folder / "finale.json").exists():
            print(f"finished steps are kept; the same command with --out {folder} continues", file=sys.stderr)
        raise
    display.summary(result, folder)
    display.console.print(comparison_table(result))
    display.console.print(f"report:     {folder / 'report.html'}", soft_wrap=True)
