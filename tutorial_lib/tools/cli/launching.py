"""``launch``: any DistDGL script, unchanged, with the options of DGL's own launch tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutorial_lib.cluster.plan import environment_text
from tutorial_lib.errors import InputError
from tutorial_lib.job.display import RunDisplay, human_bytes
from tutorial_lib.job.folder import check_run_folder, default_run_folder
from tutorial_lib.job.launch import LaunchRequest
from tutorial_lib.job.launch import launch as run_launch
from tutorial_lib.job.layout import RealMachines
from tutorial_lib.tools.cli.options import Given, MachinesOption, app, check_machines, filling, real_machines


@app.command(context_settings={"allow_interspersed_args": False})
@filling(
    LaunchRequest, RealMachines, without=["device"], part_config=..., ip_config=Path("ip_config.txt"), workspace=Path()
)
def launch(
    given: Given,
    command: Annotated[list[str], typer.Argument(help='The script and its arguments: "python3 train.py --lr 0.01".')],
    machines: MachinesOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what is added to the environment.")] = False,
) -> None:
    """Run any DistDGL script, unchanged, on emulated or real machines. Trainer output is in the log folder."""
    check_machines(emulate=given.emulate, machines=machines)
    over_ssh = given.emulate is None and machines is None
    if not over_ssh and (given.ssh_port, given.ssh_username, given.copy_to) != (None, None, None):
        raise InputError(
            "--ssh_port, --ssh_username and --copy_to are for machines reached over ssh",
            "These share this computer's files; leave --emulate and --machines out to use those of --ip_config.",
        )
    real = real_machines(given, (given.workspace / given.ip_config).resolve() if over_ssh else None)
    out = check_run_folder(given.out or default_run_folder("launch"))
    request = given.make(LaunchRequest, command=command, out=out, real=real)
    with RunDisplay() as display:
        show = lambda plan: display.console.print(environment_text(plan), soft_wrap=True)  # noqa: E731
        use = run_launch(request, display.on_event, *([show] if verbose else []))
    for machine, used in use.items():
        print(f"{machine}: sent {human_bytes(used.bytes_sent)}, logs in {out / machine}")
