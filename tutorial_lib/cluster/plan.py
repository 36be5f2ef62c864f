"""What a job is: the plan that every agent receives, and the environment of each of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tutorial_lib.cluster.spec import Machine
from tutorial_lib.errors import InputError

TORCHRUN_FOLDER = ".torchrun"
# `python -m` looks for every module in the working directory first: a copy.py or random.py there would hide Python's
# own. This puts that folder behind the standard library. One argument, so that the module's name follows it.
_BEHIND = (
    "-cimport sys; p = sys.path; here = p[:1] == ['']; p[:1] = p[here:1]; "
    "here and p.insert(next((k for k, f in enumerate(p) if f.endswith('-packages')), len(p)), ''); "
    "sys.argv[:1] = []; import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
CONNECT_TRIES = 20  # a client waits 3 s between tries: one minute, not the 51 of DGL's default


@dataclass(frozen=True)
class JobPlan:
    """A distributed job, the same text for every machine.

    Attributes:
        machines: in the order of ip_config.txt; machine k serves part k.
        command: what a trainer runs. The same command, started with ``DGL_ROLE=server``, is a server.
        part_config: partition description (JSON) that servers and trainers load.
        ip_config: path of the address file, readable on every machine.
        log_dir: folder that gets one sub-folder a machine.
        cwd: working directory of every process.
        master_port: port on machine 0 where the trainers' process group meets.
        trainers, samplers, servers: per machine; samplers are per trainer.
        graph_format: formats a server builds; ``csc`` is what neighbour sampling reads.
        server_threads: OpenMP threads of a server; None: a quarter of the machine's CPUs, divided among its servers.
        omp_threads: OpenMP threads of a trainer; None divides the machine's CPUs among its trainers.
        env: extra variables for every process.
        shell: the command is ``/bin/sh -c TEXT``: the trainer is a child of what torchrun starts.
        silence: seconds without a word from the coordinator after which an agent ends its share; None where the
            connection is a pipe on this computer, which tells at once.
        collective_seconds: time limit of the trainers' collectives.
        shm_of_trainers: bytes that the trainers will add to /dev/shm of each machine, where that is known.
        show_output: the agents pass on what the trainers print.
        forks: the command calls ``trainer.session.serve_if_server``: servers and trainers are forked there, see
            ``forkserver``. Else each is started by itself, the trainers under torchrun.
    """

    machines: Sequence[Machine]
    command: Sequence[str]
    part_config: str
    ip_config: str
    log_dir: str
    cwd: str
    master_port: int
    trainers: int = 1
    samplers: int = 0
    servers: int = 1
    graph_format: str = "csc"
    server_threads: int | None = 1
    omp_threads: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    shell: bool = False
    silence: float | None = None
    collective_seconds: float = 600.0
    shm_of_trainers: int = 0
    show_output: bool = False
    forks: bool = False

    @property
    def world_size(self) -> int:
        """Number of trainers on all machines."""
        return len(self.machines) * self.trainers

    @property
    def num_clients(self) -> int:
        """Number of processes that connect to each server; with a wrong one the servers wait for ever."""
        return self.world_size * (1 + self.samplers)

    def to_json(self) -> str:
        """One line, as sent to a machine."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobPlan:
        """Inverse of ``to_json``."""
        fields = json.loads(text)
        machines = [Machine(**{**machine, "cpus": tuple(machine["cpus"])}) for machine in fields["machines"]]
        return cls(**{**fields, "machines": machines})

    def log_folder(self, index: int) -> Path:
        """Where machine ``index`` writes its logs."""
        return Path(self.log_dir) / self.machines[index].name


def run_module(python: str, name: str) -> list[str]:
    """As ``python -m name``, but no file of the working directory can hide a module of Python itself."""
    return [python, _BEHIND, name]


def cpus_here() -> int:
    """CPUs that this process may use: of a container no more than its share (control groups, version 2)."""
    allowed = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        return max(1, min(allowed, -(-quota // period)))
    return allowed


def check_counts(trainers: int, samplers: int, servers: int, prefix: str = "--") -> None:
    """Raise an InputError for a number of processes that cannot be; ``prefix`` is that of the user's options."""
    for name, value, least in [("trainers", trainers, 1), ("samplers", samplers, 0), ("servers", servers, 1)]:
        if value < least:
            raise InputError(f"{prefix}{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Limits:
    """Seconds that each stage may take.

    Attributes:
        serving: until all servers have loaded their parts and listen.
        job: for all of the training; None for no limit.
        leaving: for the servers to end by themselves after the trainers have.
        stopping: for the agents to end everything when told to.
        cause: to wait for the cause of a lost connection.
        stall: without any sign of progress anywhere; None waits for ever.
        finishing: for the trainers to save in the middle of an epoch, on SIGTERM; 0: their program cannot.
        silence: without a word from an agent, which sends one every 2 s.
    """

    serving: float = 300.0
    job: float | None = None
    leaving: float = 20.0
    stopping: float = 15.0
    cause: float = 5.0
    stall: float | None = 120.0
    finishing: float = 0.0
    silence: float = 30.0


def check_parts(parts: int, machines: int, where: Path) -> None:
    """Raise an InputError unless there is one part for each machine."""
    if parts != machines:
        raise InputError(
            f"{where} has {parts} parts for {machines} machines; each machine serves one part",
            f"Use --emulate {parts}, or partition again with --parts {machines}.",
        )


def added_environment(plan: JobPlan, index: int, interface: str, threads: int | str) -> dict[str, str]:
    """What every process of the job on machine ``index`` has in its environment besides that machine's own.

    Args:
        interface: network interface that carries the machine's address.
        threads: OpenMP threads of the process.
    """
    hook = str(Path(__file__).with_name("hook"))
    python_path = plan.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {
        # `python3` in a user's command is then the interpreter that has DGL, also without `activate`.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": plan.ip_config,
        "DGL_CONF_PATH": plan.part_config,
        "DGL_NUM_SERVER": str(plan.servers),
        "DGL_NUM_SAMPLER": str(plan.samplers),
        "DGL_NUM_CLIENT": str(plan.num_clients),
        "DGL_GRAPH_FORMAT": plan.graph_format,
        "DGL_DIST_MAX_TRY_TIMES": str(CONNECT_TRIES),
        # Gloo would bind whatever address the host name resolves to, often 127.0.1.1.
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),  # as in the command itself, see __main__
        "DGLBACKEND": os.environ.get("DGLBACKEND", "pytorch"),
        "PYTHONUNBUFFERED": "1",
        "TUTORIAL_MACHINE": plan.machines[index].name,
        "TUTORIAL_LOG_DIR": str(plan.log_folder(index)),
        "TUTORIAL_COLLECTIVE_SECONDS": f"{plan.collective_seconds:g}",
        **({"TUTORIAL_SHELL": "1"} if plan.shell else {}),
        **{name: os.path.expandvars(value) for name, value in plan.env.items()},  # $LD_LIBRARY_PATH of that machine
        # The hook makes failures end at once, and puts the working directory behind the standard library on the
        # module path (here, a copy.py in it would hide Python's own), see hook/sitecustomize.py.
        "PYTHONPATH": os.pathsep.join(p for p in [hook, python_path] if p),
        "TUTORIAL_CWD": plan.cwd,
    }


def environment_text(plan: JobPlan) -> str:
    """For a person: what the job adds to the environment of its processes, by the example of machine 0."""
    machine, trainer_threads = plan.machines[0], plan.omp_threads or f"CPUs / {plan.trainers}"
    threads = f"({plan.server_threads or 'a quarter of the CPUs'} in a server, {trainer_threads} in a trainer)"
    added = added_environment(plan, 0, machine.interface or f"(that of {machine.address})", threads)
    heading = f"added to the environment of each process on {machine.name} (docs/patches.md says what the hook does):"
    by_role = (
        "  of a server: DGL_ROLE=server, DGL_SERVER_ID, TUTORIAL_INDEX; of a trainer: DGL_ROLE=client, "
        "TUTORIAL_TRAINER_PID, and what torchrun sets; of both: TUTORIAL_SOCKETS"
    )
    return "\n".join([heading, *(f"  {name}={value}" for name, value in added.items()), by_role])


def server_env(plan: JobPlan, index: int, server: int, interface: str, cpus: int) -> dict[str, str]:
    """Environment of DGL server ``server`` on machine ``index``; server 0 is the main one, others back it up."""
    role = server_role(plan, index, server, cpus)
    return {**os.environ, **added_environment(plan, index, interface, role["OMP_NUM_THREADS"]), **role}


def server_role(plan: JobPlan, index: int, server: int, cpus: int) -> dict[str, str]:
    """What makes a process DGL server ``server`` of machine ``index``, which has so many CPUs."""
    number, threads = index * plan.servers + server, plan.server_threads or max(1, cpus // (4 * plan.servers))
    numbers = {"DGL_SERVER_ID": number, "TUTORIAL_INDEX": server, "OMP_NUM_THREADS": threads}
    return {"DGL_ROLE": "server", **{name: str(value) for name, value in numbers.items()}}


def trainer_role(plan: JobPlan, index: int, trainer: int) -> dict[str, str]:
    """What makes a process trainer ``trainer`` of machine ``index``: the variables that torchrun would set."""
    return {
        "RANK": str(index * plan.trainers + trainer),
        "LOCAL_RANK": str(trainer),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.trainers),
        "MASTER_ADDR": plan.machines[0].address,
        "MASTER_PORT": str(plan.master_port),
    }


def trainer_env(plan: JobPlan, index: int, interface: str, cpus: int) -> dict[str, str]:
    """Environment of torchrun and the trainers on machine ``index``; its CPUs are divided among the trainers."""
    threads = plan.omp_threads or max(1, cpus // plan.trainers)
    return {**os.environ, **added_environment(plan, index, interface, threads), "DGL_ROLE": "client"}


def torchrun_argv(plan: JobPlan, index: int) -> list[str]:
    """The torchrun call of machine ``index``, through ``_torchrun.py``, which ties its store to one address.

    Each trainer goes through ``_rank.py``, which opens its log.
    """
    through, rank_stub = (str(Path(__file__).with_name(name)) for name in ("_torchrun.py", "_rank.py"))
    return [
        *(sys.executable, through, "-m", "torch.distributed.run"),
        f"--nnodes={len(plan.machines)}",
        f"--node-rank={index}",
        f"--nproc-per-node={plan.trainers}",
        f"--master-addr={plan.machines[0].address}",
        f"--master-port={plan.master_port}",
        f"--log-dir={plan.log_folder(index) / TORCHRUN_FOLDER}",  # else one more folder stays in /tmp for each job
        "--max-restarts=0",
        "--monitor-interval=0.2",
        "--no-python",
        *(sys.executable, "-I", "-S", rank_stub),
        *plan.command,
    ]
