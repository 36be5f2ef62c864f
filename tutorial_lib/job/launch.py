"""``python -m tutorial_lib launch``: run any DistDGL script, unchanged, with the options of DGL's own launch tool."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.cluster.coordinator import Coordinator, Event, Limits, MachineUse
from tutorial_lib.cluster.delivery import Delivery
from tutorial_lib.cluster.homecoming import Homecoming
from tutorial_lib.cluster.local import LocalCluster
from tutorial_lib.cluster.plan import JobPlan, check_counts, check_parts
from tutorial_lib.cluster.spec import Cluster, Machine, read_ip_config, write_ip_config
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import RealMachines, cluster_of
from tutorial_lib.job.result import own_run_folder

FORMATS = {"coo", "csr", "csc"}
_SHELL_SYNTAX = re.compile(r"[;&|<>$`*?~\n()]|^\w+=")


@dataclass(frozen=True)
class LaunchRequest:
    """What to run and where.

    Attributes:
        command: the user's command; one string may use the shell's language.
        workspace: working directory of every process; relative paths below start here.
        part_config: DGL's partition description.
        ip_config: address file that the script passes to ``initialize``. With ``real`` it is that of the machines, else
            it is written when it does not exist.
        emulate: number of emulated machines; None with ``real`` None is this computer alone, without namespaces.
        real: machines over ssh; their ``copy_to`` gets a copy of the workspace, None: they share it.
        out: folder of the logs; inside it one folder a machine.
        stall_timeout: seconds without any progress after which the job is ended; None for no limit.
        serving_timeout, collective_timeout: see ``Layout``.
    """

    command: Sequence[str]
    workspace: Path
    part_config: Path
    ip_config: Path
    out: Path
    emulate: int | None = None
    num_trainers: int = 1
    num_samplers: int = 0
    num_servers: int = 1
    num_server_threads: int = 1
    num_omp_threads: int | None = None
    graph_format: str = "csc"
    extra_envs: Sequence[str] = ()
    wire: str | None = None
    timeout: float | None = None
    stall_timeout: float | None = 120.0
    serving_timeout: float = 300.0
    collective_timeout: float = 600.0
    real: RealMachines | None = None

    def limits(self) -> Limits:
        """Time limits of the stages."""
        return Limits(serving=self.serving_timeout, job=self.timeout, stall=self.stall_timeout)


def words_of(command: Sequence[str]) -> tuple[list[str], bool]:
    """What to execute, and whether that is a shell: ``["cd x && python3 a.py"]`` needs one, as in DGL's tool."""
    if len(command) > 1:
        return list(command), False
    text = command[0] if command else ""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"cannot read the command {text!r}: {error}") from None
    if not words:
        raise InputError("nothing to run", 'Put the command last: launch ... "python3 train.py --epochs 3"')
    return (["/bin/sh", "-c", text], True) if _SHELL_SYNTAX.search(text) else (words, False)


def _check(request: LaunchRequest) -> Path:
    """Find what is wrong before anything is started; returns the part config's path, made absolute."""
    words_of(request.command)
    if not request.workspace.is_dir():
        raise InputError(f"--workspace {request.workspace} is not a folder")
    check_counts(request.num_trainers, request.num_samplers, request.num_servers, prefix="--num_")
    unknown = set(request.graph_format.split(",")) - FORMATS
    if unknown:
        raise InputError(f"--graph_format: unknown {sorted(unknown)[0]!r}", "Known: coo, csr, csc, joined by commas.")
    if request.wire is not None and request.emulate is None:
        raise InputError("--wire shapes the wire between emulated machines; it needs --emulate N")
    return (request.workspace / request.part_config).resolve()


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


def _replace_own_ip_config(path: Path, machines: Sequence[Machine]) -> None:
    """Write the address file of a job on this machine alone; a list of other machines is not overwritten."""
    if path.exists() and [m.address for m in read_ip_config(path)] != [m.address for m in machines]:
        raise InputError(
            f"{path} lists other machines than {machines[0].address}",
            "With --machines 1 it is written anew for each job: name another file with --ip_config.",
        )
    write_ip_config(path, machines)


def spread_extra_envs(arguments: Sequence[str]) -> list[str]:
    """``--extra_envs A=1 B=2`` to ``--extra_envs A=1 --extra_envs B=2``, for the sake of DGL's tool, which takes it."""
    spread: list[str] = []
    inside = False
    for k, word in enumerate(arguments):
        is_pair = re.fullmatch(r"[A-Za-z_]\w*=\S*", word) is not None
        if inside and is_pair and spread[-1] != "--extra_envs" and k < len(arguments) - 1:
            spread.append("--extra_envs")
        inside = word == "--extra_envs" or (inside and is_pair)
        spread.append(word)
    return spread


def environment_of(pairs: Sequence[str]) -> dict[str, str]:
    """``["A=1", "B=2 C='x y'"]`` to variables, as DGL's launch tool takes them in ``--extra_envs``."""
    try:
        words = [word for pair in pairs for word in shlex.split(pair)]
    except ValueError as error:
        raise InputError(f"--extra_envs: cannot read {' '.join(pairs)!r}: {error}") from None
    for word in words:
        if not re.match(r"[A-Za-z_]\w*=", word):
            raise InputError(f"--extra_envs: {word!r} is not NAME=VALUE")
    return dict(word.split("=", 1) for word in words)


def launch(
    request: LaunchRequest,
    on_event: Callable[[Event], None] = lambda _event: None,
    on_plan: Callable[[JobPlan], None] = lambda _plan: None,
) -> dict[str, MachineUse]:
    """Run the command on the machines and return what each machine used; ``on_plan`` gets the plan before the start.

    Raises:
        InputError: found before anything was started. JobFailed: with the first cause. JobError: it ended well, and
            not all that it wrote could be brought home.
    """
    part_config = _check(request)
    ip_config = (request.workspace / request.ip_config).resolve()
    cluster = cluster_of(request.emulate, request.wire, request.real, request.num_servers)
    check_parts(_parts_in(part_config), len(cluster.machines), part_config)
    environment = environment_of(request.extra_envs)
    if request.emulate is not None:
        _provide_ip_config(ip_config, cluster.machines)
    with own_run_folder(request.out), cluster:
        if isinstance(cluster, LocalCluster):  # its ports are chosen on entering
            _replace_own_ip_config(ip_config, cluster.machines)
        plan = _plan(request, cluster, part_config, ip_config, environment)
        on_plan(plan)
        real = request.real
        options = {"limits": request.limits(), "allow_public": real is not None and real.allow_public}
        delivery = None
        if real is not None and real.copy_to is not None:
            assert isinstance(cluster, SshCluster)
            folder = cluster.folder(real.copy_to)
            delivery = Delivery.of_workspace(request.workspace, plan, folder, name=request.out.name)
        with Homecoming(cluster, delivery, request.out.absolute(), on_event) as home:
            use = Coordinator(cluster, plan, home.on_event, remote=home.remote, **options).run()
        home.check()
        return use


def _plan(
    request: LaunchRequest, cluster: Cluster, part_config: Path, ip_config: Path, environment: dict[str, str]
) -> JobPlan:
    command, shell = words_of(request.command)
    return JobPlan(
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
        shell=shell,
        silence=getattr(cluster, "silence", None),
        collective_seconds=request.collective_timeout,
    )
