"""``train``: a run from data set to one global accuracy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.data import DEFAULT_SCALE
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import RunDisplay
from tutorial_lib.job.result import check_resume_folder, check_run_folder, default_run_folder
from tutorial_lib.tasks import check_task
from tutorial_lib.tools.cli.app import app
from tutorial_lib.tools.cli.options import (
    LARGEST,
    AheadOption,
    BatchSizeOption,
    CacheOption,
    CollectiveOption,
    CopyToOption,
    DatasetOption,
    DeviceOption,
    EmbeddingLearningRateOption,
    EmbeddingSizeOption,
    EmulateOption,
    FanoutsOption,
    HalfWireOption,
    HiddenSizeOption,
    IpConfigOption,
    LearningRateOption,
    LoaderOption,
    MachinesOption,
    MaxMemoryOption,
    PublicOption,
    RemotePythonOption,
    RootOption,
    SamplersOption,
    ScaleOption,
    SeedOption,
    ServersOption,
    ServingOption,
    SshPortOption,
    SshUserOption,
    StallOption,
    TaskOption,
    TrainersOption,
    WireOption,
    check_machines,
    parse_fanouts,
    real_machines,
)


@app.command()
def train(
    dataset: DatasetOption = "synthetic-products",
    emulate: EmulateOption = None,
    machines: MachinesOption = None,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="No servers, no ranks: the plain loop, to compare with.")
    ] = False,
    trainers: TrainersOption = 1,
    samplers: SamplersOption = 0,
    servers: ServersOption = 1,
    wire: WireOption = None,
    ip_config: IpConfigOption = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    copy_to: CopyToOption = None,
    allow_public: PublicOption = False,
    stall_timeout: StallOption = 120.0,
    serving_timeout: ServingOption = 300.0,
    collective_timeout: CollectiveOption = 600.0,
    task: TaskOption = "node",
    epochs: Annotated[int, typer.Option(min=1, max=LARGEST)] = 20,
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchSizeOption = 1000,
    hidden_size: HiddenSizeOption = 256,
    learning_rate: LearningRateOption = 0.006,
    embedding_size: EmbeddingSizeOption = 64,
    embedding_learning_rate: EmbeddingLearningRateOption = 0.01,
    loader: LoaderOption = "auto",
    cache: CacheOption = "256MB",
    ahead: AheadOption = 2,
    half_wire: HalfWireOption = False,
    device: DeviceOption = "cpu",
    scale: ScaleOption = DEFAULT_SCALE,
    seed: SeedOption = 0,
    max_memory: MaxMemoryOption = None,
    root: RootOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; must not exist yet, but for --resume. (default: runs/TIME-NAME-XXXX)"),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between two checkpoints.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last complete checkpoint.")
    ] = False,
) -> None:
    """Train GraphSAGE, or a model of another task, and report one global score."""
    from tutorial_lib.job.continuation import Continuation
    from tutorial_lib.job.layout import Layout
    from tutorial_lib.job.train import DataSource, run_distributed, run_single
    from tutorial_lib.trainer.config import TrainConfig, check_loader

    check_task(task)
    check_machines(
        emulate=emulate,
        machines=machines,
        ip_config=ip_config,
        single_process=single_process,
        wire=wire,
        ssh=(ssh_port, ssh_username, copy_to),
    )
    if single_process and (trainers, samplers, servers) != (1, 0, 1):
        raise InputError("--single-process has no --trainers, --samplers and --servers")
    if resume and out is None:
        raise InputError("--resume needs --out, the folder of the run to continue")
    config = TrainConfig(
        epochs=epochs,
        fanouts=parse_fanouts(fanouts),
        batch_size=batch_size,
        hidden_size=hidden_size,
        learning_rate=learning_rate,
        seed=seed,
        task=task,
        embedding_size=embedding_size,
        embedding_learning_rate=embedding_learning_rate,
        loader=loader,
        cache=check_loader(loader, samplers, cache),
        ahead=ahead,
        half_wire=half_wire,
    )
    real = real_machines(ip_config, ssh_port, ssh_username, remote_python, copy_to, allow_public)
    if real is None and not single_process and machines is None and emulate is None:
        emulate = 2
    source = DataSource(dataset, scale=scale, seed=seed, root=root, max_memory=max_memory)
    folder = check_resume_folder(out) if resume and out else check_run_folder(out or default_run_folder(dataset))
    keep = Continuation(resume, checkpoint_every)
    with RunDisplay(epochs) as display:
        if single_process:
            result = run_single(source, config, folder, display, keep, device=device)
        else:
            limits = (serving_timeout, collective_timeout)
            layout = Layout(emulate, wire, trainers, samplers, servers, real, stall_timeout or None, device, *limits)
            result = run_distributed(source, layout, config, folder, display, keep)
    display.summary(result, folder)
