"""``launch`` runs any DistDGL script unchanged, with the options of DGL's own launch tool."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import JobPlan, read_part
from tutorial_lib.job.display import Reporter
from tutorial_lib.job.folder import default_run_folder, open_run
from tutorial_lib.job.ip_config import read_ip_config, write_ip_config
from tutorial_lib.job.layout import (
    Layout,
    RealMachines,  # noqa: F401  cyclopts resolves the annotations of the inherited fields in this module
    check_results,
    run_on_machines,
)
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.coordinator import MachineUse
from tutorial_lib.launcher.jobspec import Limits, Machine

FORMATS = {"coo", "csr", "csc"}
SHELL_SYNTAX = re.compile(r"[;&|<>$`*?~\n()]|^\w+=")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(Layout):
    """The command of ``launch`` and its machines.

    Attributes:
        command: the user's command. A single string may use the syntax of the shell.
        workspace: working directory of every process. The paths of --part_config and --ip_config start here.
        part_config: DGL's partition description (JSON). Without it, the job has no DGL servers, only
            ranks of torch.distributed.
        ip_config: address file that the script reads. Its machines are reached over ssh. With --emulate and
            --part_config it is written if it does not exist.
        out: folder of the logs, with one folder for each machine.
        num_server_threads: OpenMP threads of a server.
        num_omp_threads: OpenMP threads of a trainer. (default: an equal share of the CPUs)
        graph_format: sparse formats that the servers create, such as coo,csc.
        extra_envs: variables NAME=VALUE for every process.
        timeout: time limit of the trainers in seconds.
    """

    command: Sequence[str] = ()
    workspace: Path = Path()
    part_config: Path | None = None
    ip_config: Path = Path("ip_config.txt")
    out: Path = field(default_factory=partial(default_run_folder, "launch"))
    emulate: int | None = None
    num_server_threads: int = 1
    num_omp_threads: int | None = None
    graph_format: str = "csc"
    extra_envs: Sequence[str] = ()
    timeout: float | None = None

    def limits(self) -> Limits:
        return replace(super().limits(), job=self.timeout)


def split_words(source: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"{source}: cannot read {text!r}: {error}") from None


def words_of(command: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of the command, and whether it needs a shell, like ``["cd x && python3 a.py"]``."""
    if len(command) > 1:
        return list(command), False
    text = "".join(command)
    if not text.strip():
        raise InputError("nothing to run", 'Put the command last: launch ... "python3 train.py --epochs 3"')
    words = split_words("the command", text)
    return (["/bin/sh", "-c", text], True) if SHELL_SYNTAX.search(text) else (words, False)


def environment_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables of ``--extra_envs``, such as ``["A=1", "B=2 C='x y'"]``, in the syntax of DGL's tool."""
    words = split_words("--extra_envs", " ".join(pairs))
    for word in words:
        if not re.match(r"[A-Za-z_]\w*=", word):
            raise InputError(f"--extra_envs: {word!r} is not NAME=VALUE")
    return dict(word.split("=", 1) for word in words)


def provide_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the address file. A file that lists other machines is an error and is not overwritten."""
    addresses = [machine.address for machine in machines]
    if path.exists() and [machine.address for machine in read_ip_config(path)] != addresses:
        message = f"{path} lists other machines than {', '.join(addresses)}"
        raise InputError(message, "Name a file that does not exist yet with --ip_config. It is written.")
    try:
        write_ip_config(path, machines)
    except OSError as error:
        raise InputError(f"cannot write --ip_config {path}: {error.strerror}") from None


def launch(
    request: LaunchRequest, reporter: Reporter | None = None, on_plan: Callable[[JobPlan], None] | None = None
) -> dict[str, MachineUse]:
    """Run the command and return the resources that each machine used. ``on_plan`` gets the plan before the start."""
    if not request.workspace.is_dir():
        raise InputError(f"--workspace {request.workspace} is not a folder")
    if unknown := sorted(set(request.graph_format.split(",")) - FORMATS):
        raise InputError(f"--graph_format: unknown {unknown[0]!r}", "Known: coo, csr, csc, joined by commas.")
    command, shell = words_of(request.command)
    environment = environment_of(request.extra_envs)
    workspace, out = request.workspace.resolve(), request.out.absolute()
    cluster = request.cluster(out, workspace)
    part_config = ip_config = None
    if request.part_config is not None:
        part_config, ip_config = ((workspace / path).resolve() for path in (request.part_config, request.ip_config))
        read_part(part_config, 0, len(cluster.machines))
    with open_run(out, reporter or Reporter()) as log, cluster, Agents(cluster, out, log.warn) as agents:
        if ip_config is not None and request.real is None:
            provide_ip_config(ip_config, cluster.machines)
        plan = request.plan(
            cluster,
            command=command,
            shell=shell,
            part_config=str(part_config or ""),
            ip_config=str(ip_config or ""),
            servers=request.servers if part_config else 0,
            log_dir=str(out),
            cwd=str(workspace),
            graph_format=request.graph_format,
            server_threads=request.num_server_threads,
            omp_threads=request.num_omp_threads,
            env=environment,
        )
        if on_plan is not None:
            on_plan(plan)
        uploads = [(workspace, "", part_config and part_config.parent)]
        coordinator, missing = run_on_machines(agents, plan, request.limits(), out, log.write, uploads)
        check_results(missing)
        return coordinator.use
