"""The description of a job for the launcher: its roles, its paths, and its time limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_PORT = 30050  # the port that DGL's own launch tool uses for server 0


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster.

    Attributes:
        name: name in log folders and messages, such as machine-0. For Slurm, the name of the node.
        address: IPv4 address that the other machines use. DGL takes no host names.
        port: first port of its DGL servers. Server k listens on ``port + k``.
        interface: network interface that carries ``address``, or None if the agent shall find it.
        cpus: CPU numbers that its processes may use. An empty tuple means all CPUs.
    """

    name: str
    address: str
    port: int = DEFAULT_PORT
    interface: str | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Role:
    """One kind of process of a job. The agent of each machine starts ``count`` of them.

    Attributes:
        name: ``server`` or ``trainer``. It is used in names of logs and in messages.
        count: processes on each machine.
        command: program and arguments, or None if the template process of the job forks this role.
        env: additional variables. ``{index}`` is replaced by the number of the process on its machine, and
            ``{global_index}`` by its number in the whole job.
        ranked: whether the processes are ranks of torch.distributed and get RANK, WORLD_SIZE, MASTER_ADDR and so on.
        after: the role that must be ready on all machines before this one starts.
        listens: whether process k listens on the port of its machine plus k. Then the role is ready. Other roles are
            ready when they have been started.
        service: whether the processes serve the other roles and end by themselves after them.
        threads: OpenMP threads of a process, or None for an equal share of ``cpu_share``.
        cpu_share: share of the CPUs of a machine that all processes of this role divide.
        early_end: question for the user if a process ends well before the other roles have been started.
    """

    name: str
    count: int
    command: list[str] | None
    env: dict[str, str] = field(default_factory=dict)
    ranked: bool = False
    after: str | None = None
    listens: bool = False
    service: bool = False
    threads: int | None = None
    cpu_share: float = 1.0
    early_end: str = ""


@dataclass(frozen=True)
class JobSpec:
    """A job as the launcher knows it. Every agent receives the same text.

    Attributes:
        machines: all machines of the job. Machine k has the processes ``k * count`` to ``(k + 1) * count - 1`` of a
            role.
        roles: in the order in which they start.
        cwd: working directory of every process.
        log_dir: folder that gets one subfolder for each machine.
        master_port: port on machine 0 where the ranks meet.
        env: variables of every process.
        user_env: variables that the user gave. They take precedence, and ``$NAME`` is replaced on each machine.
        template: program that imports once and then forks the roles without a command, see ``forkserver``.
        shell: whether the command of a role is ``/bin/sh -c TEXT``, so that the program is a child of the shell.
        startup_files: Python files that every process of the job runs when it starts.
        worker_roles: variable to role name. A process that a rank starts with ``multiprocessing`` has this role if the
            variable is set and not 0, and otherwise the role ``worker``.
        shm_patterns: regular expressions of the names of the job's files in /dev/shm, see ``shm``.
        silence: seconds without a message from the coordinator after which an agent stops, or None for no limit.
        show_output: whether the agents forward the output of the ranks.
    """

    machines: list[Machine]
    roles: list[Role]
    cwd: str
    log_dir: str
    master_port: int
    env: dict[str, str] = field(default_factory=dict)
    user_env: dict[str, str] = field(default_factory=dict)
    template: list[str] | None = None
    shell: bool = False
    startup_files: list[str] = field(default_factory=list)
    worker_roles: dict[str, str] = field(default_factory=dict)
    shm_patterns: list[str] = field(default_factory=list)
    silence: float | None = None
    show_output: bool = False

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> JobSpec:
        """Return the job of ``to_dict``."""
        machines = [Machine(**{**machine, "cpus": tuple(machine["cpus"])}) for machine in fields["machines"]]
        return cls(**{**fields, "machines": machines, "roles": [Role(**role) for role in fields["roles"]]})

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can store."""
        return asdict(self)

    def log_folder(self, index: int) -> Path:
        """Return the folder of the logs of machine ``index``."""
        return Path(self.log_dir) / self.machines[index].name

    def role(self, name: str) -> Role | None:
        """Return the role of this name, or None if the job has none."""
        return next((role for role in self.roles if role.name == name), None)

    def rank(self, name: str, index: int, k: int) -> int | None:
        """Return the global rank of process ``k`` of a role on machine ``index``, or None for roles without ranks."""
        role = self.role(name)
        return index * role.count + k if role is not None and role.ranked else None


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
        finishing: for the ranks to save in the middle of an epoch, on SIGTERM; 0: their program cannot.
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
