"""``python -m tutorial_lib launch``: run any DistDGL script, unchanged, with the options of DGL's own launch tool."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.job import JobPlan, check_counts, check_parts
from tutorial_lib.cluster.launch import Coordinator, Event, Limits, MachineUse
from tutorial_lib.cluster.spec import Machine, read_ip_config, write_ip_config
from tutorial_lib.errors import InputError

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
    num_server_threads: int = 1
    num_omp_threads: int | None = None
    graph_format: str = "csc"
    extra_envs: Sequence[str] = ()
    wire: str | None = None
    timeout: float | None = None


def check(request: LaunchRequest) -> tuple[list[str], Path, Path]:
    """Find what is wrong before anything is started; returns command, part config and ip config, made absolute."""
    try:
        command = shlex.split(request.command[0]) if len(request.command) == 1 else list(request.command)
    except ValueError as error:
        raise InputError(f"cannot read the command {request.command[0]!r}: {error}") from None
    if not command:
        raise InputError("nothing to run", 'Put the command last: launch ... "python3 train.py --epochs 3"')
    if not request.workspace.is_dir():
        raise InputError(f"--workspace {request.workspace} is not a folder")
    check_counts(request.num_trainers, request.num_samplers, request.num_servers, prefix="--num_")
    unknown = set(request.graph_format.split(",")) - FORMATS
    if unknown:
        raise InputError(f"--graph_format: unknown {sorted(unknown)[0]!r}", "Known: coo, csr, csc, joined by commas.")
    part_config = (request.workspace / request.part_config).resolve()
    check_parts(_parts_in(part_config), request.emulate, part_config)
    return command, part_config, (request.workspace / request.ip_config).resolve()


def _parts_in(part_config: Path) -> int:
    try:
        return json.loads(part_config.read_text())["num_parts"]
    except OSError as error:
        raise InputError(f"--part_config {part_config}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"--part_config {part_config} is not a partition description of DGL") from None


def _provide_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the address file, or see that the one that is there lists these machines."""
    if not path.exists():
        try:
            write_ip_config(path, machines)
        except OSError as error:
            raise InputError(f"cannot write --ip_config {path}: {error.strerror}") from None
    elif [(m.address, m.port) for m in read_ip_config(path)] != [(m.address, m.port) for m in machines]:
        content = "".join(f"{m.address} {m.port}\n" for m in machines)
        raise InputError(
            f"{path} lists other machines than the emulated ones",
            f"Name a file that does not exist yet (it is written), or give it this content:\n{content}",
        )


def environment_of(pairs: Sequence[str]) -> dict[str, str]:
    """``["A=1", "B=2 C=3"]`` to variables, as DGL's launch tool takes them in ``--extra_envs``."""
    words = [word for pair in pairs for word in pair.split()]
    for word in words:
        if not re.match(r"[A-Za-z_]\w*=", word):
            raise InputError(f"--extra_envs: {word!r} is not NAME=VALUE")
    return dict(word.split("=", 1) for word in words)


def launch(request: LaunchRequest, on_event: Callable[[Event], None] = lambda _event: None) -> dict[str, MachineUse]:
    """Run the command on emulated machines and return what each machine used.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause.
    """
    command, part_config, ip_config = check(request)
    cluster = EmulatedCluster(request.emulate, wire=request.wire)
    environment = environment_of(request.extra_envs)
    _provide_ip_config(ip_config, cluster.machines)
    with cluster:
        plan = JobPlan(
            machines=cluster.machines,
            command=command,
            part_config=str(part_config),
            ip_config=str(ip_config),
            log_dir=str(request.out.resolve()),
            cwd=str(request.workspace.resolve()),
            master_port=cluster.master_port,
            trainers=request.num_trainers,
            samplers=request.num_samplers,
            servers=request.num_servers,
            graph_format=request.graph_format,
            server_threads=request.num_server_threads,
            omp_threads=request.num_omp_threads,
            env=environment,
        )
        return Coordinator(cluster, plan, on_event, Limits(job=request.timeout)).run()
