"""``python -m tutorial_lib launch``: run any DistDGL script, unchanged, with the options of DGL's own launch tool."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.job import JobPlan
from tutorial_lib.cluster.launch import Coordinator, Event, Limits, MachineUse
from tutorial_lib.cluster.spec import write_ip_config
from tutorial_lib.errors import InputError

MASTER_PORT = 1234  # what DGL's launch tool uses
FORMATS = {"coo", "csr", "csc"}


@dataclass(frozen=True)
class LaunchRequest:
    """What to run and where.

    Attributes:
        command: the user's command; one string is split as a shell would.
        workspace: working directory of every process; relative paths below start here.
        part_config: DGL's partition description.
        ip_config: address file that the script passes to ``initialize``. It is written when it does not exist.
        emulate: number of emulated machines.
        out: folder of the logs; inside it one folder a machine.
    """

    command: Sequence[str]
    workspace: Path
    part_config: Path
    ip_config: Path
    emulate: int
    out: Path
    num_trainers: int = 1
    num_samplers: int = 0
    num_servers: int = 1
    graph_format: str = "csc"
    wire: str | None = None
    timeout: float | None = None


def check(request: LaunchRequest) -> tuple[list[str], Path, Path]:
    """Find what is wrong before anything is started; returns command, part config and ip config, made absolute."""
    command = shlex.split(request.command[0]) if len(request.command) == 1 else list(request.command)
    if not command:
        raise InputError("nothing to run", 'Put the command last: launch ... "python3 train.py --epochs 3"')
    if not request.workspace.is_dir():
        raise InputError(f"--workspace {request.workspace} is not a folder")
    for name, value, least in [
        ("--num_trainers", request.num_trainers, 1),
        ("--num_samplers", request.num_samplers, 0),
        ("--num_servers", request.num_servers, 1),
    ]:
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    unknown = set(request.graph_format.split(",")) - FORMATS
    if unknown:
        raise InputError(f"--graph_format: unknown {sorted(unknown)[0]!r}", "Known: coo, csr, csc, joined by commas.")
    part_config = (request.workspace / request.part_config).resolve()
    _check_parts(part_config, request.emulate)
    return command, part_config, (request.workspace / request.ip_config).resolve()


def _check_parts(part_config: Path, machines: int) -> None:
    try:
        parts = json.loads(part_config.read_text())["num_parts"]
    except OSError as error:
        raise InputError(f"--part_config {part_config}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"--part_config {part_config} is not a partition description of DGL") from None
    if parts != machines:
        raise InputError(
            f"{part_config} has {parts} parts for {machines} machines; each machine serves one part",
            f"Use --emulate {parts}, or partition again.",
        )


def launch(request: LaunchRequest, on_event: Callable[[Event], None] = lambda _event: None) -> dict[str, MachineUse]:
    """Run the command on emulated machines and return what each machine used.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    command, part_config, ip_config = check(request)
    cluster = EmulatedCluster(request.emulate, wire=request.wire)
    expected = "".join(f"{machine.address} {machine.port}\n" for machine in cluster.machines)
    if not ip_config.exists():
        write_ip_config(ip_config, cluster.machines)
    elif ip_config.read_text() != expected:
        raise InputError(
            f"{ip_config} lists other machines than the emulated ones",
            f"Name a file that does not exist yet (it is written), or give it this content:\n{expected}",
        )
    with cluster:
        plan = JobPlan(
            machines=cluster.machines,
            command=command,
            part_config=str(part_config),
            ip_config=str(ip_config),
            log_dir=str(request.out.resolve()),
            cwd=str(request.workspace.resolve()),
            master_port=MASTER_PORT,
            trainers=request.num_trainers,
            samplers=request.num_samplers,
            servers=request.num_servers,
            graph_format=request.graph_format,
        )
        return Coordinator(cluster, plan, on_event, Limits(job=request.timeout)).run()


def default_log_folder() -> Path:
    """``runs/TIME-launch`` in the working directory."""
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-launch"
