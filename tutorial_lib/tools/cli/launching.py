"""``launch``: any DistDGL script, unchanged, with the options of DGL's own launch tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.errors import InputError
from tutorial_lib.job.display import RunDisplay, human_bytes
from tutorial_lib.job.result import check_run_folder, default_run_folder
from tutorial_lib.tools.cli.app import app
from tutorial_lib.tools.cli.options import (
    MOST_PROCESSES,
    CollectiveOption,
    CopyToOption,
    EmulateOption,
    MachinesOption,
    PublicOption,
    RemotePythonOption,
    ServingOption,
    SshPortOption,
    SshUserOption,
    StallOption,
    WireOption,
    check_machines,
    real_machines,
)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    command: Annotated[list[str], typer.Argument(help='The script and its arguments: "python3 train.py --lr 0.01".')],
    part_config: Annotated[Path, typer.Option("--part_config", help="DGL's partition description (JSON).")],
    emulate: EmulateOption = None,
    machines: MachinesOption = None,
    ip_config: Annotated[
        Path,
        typer.Option(
            "--ip_config",
            help="Address file that the script reads: its machines are reached over ssh. With --emulate it is written "
            "if it does not exist.",
        ),
    ] = Path("ip_config.txt"),
    workspace: Annotated[Path, typer.Option(help="Working directory of every process.")] = Path(),
    num_trainers: Annotated[int, typer.Option("--num_trainers", max=MOST_PROCESSES, help="Trainers per machine.")] = 1,
    num_samplers: Annotated[
        int, typer.Option("--num_samplers", max=MOST_PROCESSES, help="Sampler processes per trainer.")
    ] = 0,
    num_servers: Annotated[int, typer.Option("--num_servers", max=MOST_PROCESSES, help="DGL servers per machine.")] = 1,
    num_server_threads: Annotated[
        int, typer.Option("--num_server_threads", min=1, help="OpenMP threads of a server.")
    ] = 1,
    num_omp_threads: Annotated[
        int | None, typer.Option("--num_omp_threads", min=1, help="OpenMP threads of a trainer (default: CPUs divided)")
    ] = None,
    graph_format: Annotated[str, typer.Option("--graph_format", help="Formats the servers build.")] = "csc",
    extra_envs: Annotated[
        list[str] | None, typer.Option("--extra_envs", help="NAME=VALUE ... for every process.")
    ] = None,
    ssh_port: SshPortOption = None,
    ssh_username: SshUserOption = None,
    remote_python: RemotePythonOption = sys.executable,
    copy_to: CopyToOption = None,
    allow_public: PublicOption = False,
    wire: WireOption = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Seconds the trainers may take.")] = None,
    stall_timeout: StallOption = 120.0,
    serving_timeout: ServingOption = 300.0,
    collective_timeout: CollectiveOption = 600.0,
    out: Annotated[Path | None, typer.Option(help="Folder of the logs (default: runs/TIME-launch-XXXX)")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what is added to the environment.")] = False,
) -> None:
    """Run any DistDGL script, unchanged, on emulated or real machines. Trainer output is in the log folder."""
    from tutorial_lib.cluster.plan import environment_text
    from tutorial_lib.job.launch import LaunchRequest
    from tutorial_lib.job.launch import launch as run_launch

    check_machines(emulate=emulate, machines=machines)
    over_ssh = emulate is None and machines is None
    if not over_ssh and (ssh_port, ssh_username, copy_to) != (None, None, None):
        raise InputError(
            "--ssh_port, --ssh_username and --copy_to are for machines reached over ssh",
            "These share this computer's files; leave --emulate and --machines out to use those of --ip_config.",
        )
    address_file = (workspace / ip_config).resolve() if over_ssh else None
    out = check_run_folder(out or default_run_folder("launch"))
    request = LaunchRequest(
        command=command,
        workspace=workspace,
        part_config=part_config,
        ip_config=ip_config,
        out=out,
        emulate=emulate,
        num_trainers=num_trainers,
        num_samplers=num_samplers,
        num_servers=num_servers,
        num_server_threads=num_server_threads,
        num_omp_threads=num_omp_threads,
        graph_format=graph_format,
        extra_envs=extra_envs or (),
        wire=wire,
        timeout=timeout,
        stall_timeout=stall_timeout or None,
        serving_timeout=serving_timeout,
        collective_timeout=collective_timeout,
        real=real_machines(address_file, ssh_port, ssh_username, remote_python, copy_to, allow_public),
    )
    with RunDisplay() as display:
        show = lambda plan: display.console.print(environment_text(plan), soft_wrap=True)  # noqa: E731
        use = run_launch(request, display.on_event, *([show] if verbose else []))
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {out / machine}")
