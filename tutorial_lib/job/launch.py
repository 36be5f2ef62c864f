"""``launch`` runs any script with the options of DGL's launch tool."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import DglJob, read_part
from tutorial_lib.job.display import SILENT, RunDisplay
from tutorial_lib.job.folder import CheckpointOptions, open_run
from tutorial_lib.job.ip_config import read_ip_config, write_ip_config
from tutorial_lib.job.layout import Layout, run_on_machines
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.coordinator import MachineUse
from tutorial_lib.launcher.environment import describe_environment
from tutorial_lib.launcher.jobspec import Machine

SHELL_SYNTAX = re.compile(r"[;&|<>$`*?~\n()]|^\w+=|^\s*$")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(Layout):
    """The command of ``launch`` and its machines.

    Attributes:
        workspace: Working directory of every process. --part_config and --ip_config are relative to it.
        part_config: DGL's partition description (JSON). Without it, the job has no DGL servers, only
            ranks of torch.distributed.
        num_omp_threads: OpenMP threads of a trainer. (default: an equal share of the CPUs)
        graph_format: Sparse formats that the servers create, such as coo,csc.
        extra_envs: Variables NAME=VALUE for every process.
    """

    command: Sequence[str] = ()  # a single string may use the syntax of the shell
    workspace: Path = Path()
    part_config: Path | None = None
    ip_config: Path = Path("ip_config.txt")  # read by the script. With part_config, written except over ssh
    out: Path = Path("runs/launch")  # one folder of logs for each machine
    emulate: int | None = None
    num_omp_threads: int | None = None
    graph_format: str = "csc"
    extra_envs: Sequence[str] = ()


def split_command(command: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of the command, and whether it needs a shell, like ``["cd x && python3 a.py"]``."""
    if len(command) > 1:
        return list(command), False
    text = "".join(command)
    if SHELL_SYNTAX.search(text):
        return ["/bin/sh", "-c", text], True
    try:
        return shlex.split(text), False
    except ValueError as error:
        raise InputError(f"cannot parse the command {text!r}: {error}", "Check its quotes.") from None


def write_or_compare_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the address file. A file that lists other machines is an error and is not overwritten."""
    addresses = [machine.address for machine in machines]
    if path.exists() and [machine.address for machine in read_ip_config(path)] != addresses:
        message = f"{path} lists other machines than {', '.join(addresses)}"
        raise InputError(message, "Pass --ip_config with a file that does not exist yet. launch writes it.")
    write_ip_config(path, machines)


def launch(request: LaunchRequest, display: RunDisplay = SILENT, *, verbose: bool = False) -> dict[str, MachineUse]:
    """Run the command and return the resources that each machine used. ``verbose`` shows the added variables."""
    command, shell = split_command(request.command)
    if invalid := [pair for pair in request.extra_envs if not re.match(r"[A-Za-z_]\w*=", pair)]:
        raise InputError(f"--extra_envs: {invalid[0]!r} is not NAME=VALUE", "For example: --extra_envs LR=0.01")
    workspace, out = request.workspace.resolve(), request.out.absolute()
    backend = request.make_backend(out, workspace)
    part_config = request.part_config and (workspace / request.part_config).resolve()
    ip_config = part_config and (workspace / request.ip_config).resolve()
    if part_config:
        read_part(part_config, 0, len(backend.machines))
    with open_run(out, display, CheckpointOptions()) as event_log, backend, Agents(backend, out, display.log) as agents:
        if ip_config and not backend.traits.reads_ip_config:
            write_or_compare_ip_config(ip_config, backend.machines)
        job = DglJob(
            machines=backend.machines,
            command=command,
            shell=shell,
            part_config=str(part_config or ""),
            ip_config=str(ip_config or ""),
            log_dir=str(out),
            cwd=str(workspace),
            master_port=backend.master_port,
            graph_format=request.graph_format,
            omp_threads=request.num_omp_threads,
            env=dict(pair.split("=", 1) for pair in request.extra_envs),
        )
        job = request.complete_job(job, backend)
        if verbose:
            display.show(f"{describe_environment(job.to_spec())}\n")
        uploads = [(workspace, "", part_config and part_config.parent)]
        return run_on_machines(agents, job, request.limits(), out, event_log.write, uploads)
