"""The description of a job for the launcher: its machines, roles and paths, and its time limits."""

from dataclasses import dataclass, field
from pathlib import Path

from tutorial_lib.files import JsonObject

DEFAULT_PORT = 30050  # the port that DGL's own launch tool uses for server 0


@dataclass(frozen=True)
class Machine:
    name: str  # in log folders and messages, such as machine-0; for Slurm, the name of the node
    address: str  # IPv4 address that the other machines use; DGL takes no host names
    port: int = DEFAULT_PORT  # first port of its servers; server k listens on port + k
    cpus: tuple[int, ...] = ()  # CPU numbers that its processes may use; an empty tuple means all


@dataclass(frozen=True)
class Role:
    """One kind of process of a job."""

    name: str  # used in names of logs and in messages, such as server or trainer
    count: int  # processes on each machine
    command: list[str] | None  # None: the forkserver of the job forks this role
    env: dict[str, str] = field(default_factory=dict)  # {global_index}: number of the process in the whole job
    ranked: bool = False  # the processes are ranks of torch.distributed and get RANK, WORLD_SIZE, MASTER_ADDR and so on
    after: str | None = None  # the role whose processes must listen on all machines before this one starts
    listens: bool = False  # process k listens on the port of its machine plus k
    service: bool = False  # the processes serve the other roles and end by themselves after them
    threads: int | None = None  # OpenMP threads of a process, or None for an equal share of cpu_share
    cpu_share: float = 1.0  # share of the CPUs of a machine that all processes of this role divide
    early_end: str = ""  # question for the user if a process exits with code 0 before all roles have started


@dataclass(frozen=True)
class JobSpec:
    machines: list[Machine]  # machine 1 has the processes count to 2 * count - 1 of each role
    roles: list[Role]  # in the order in which they start
    cwd: str  # working directory of every process
    log_dir: str  # folder that gets one subfolder for each machine
    master_port: int  # on machine 0, where the ranks meet
    env: dict[str, str] = field(default_factory=dict)  # variables of every process
    user_env: dict[str, str] = field(default_factory=dict)  # takes precedence; $NAME is replaced on each machine
    forkserver_command: list[str] | None = None  # program of the forkserver, which forks the roles without a command
    shell: bool = False  # a command is /bin/sh -c TEXT, so that the program is a child of the shell
    startup_files: list[str] = field(default_factory=list)  # Python files that every process runs when it starts
    # Variable to role. A process that a rank starts has this role if the variable is set and not 0, else "worker".
    worker_roles: dict[str, str] = field(default_factory=dict)
    # Functions "module:name" that each machine calls with its number and these keyword arguments. They return findings.
    checks: list[tuple[str, JsonObject]] = field(default_factory=list)
    same_packages: list[str] = field(default_factory=list)  # their versions must be equal on all machines
    shm_patterns: list[str] = field(default_factory=list)  # regular expressions of files in /dev/shm
    silence: float | None = None  # seconds without a message after which an agent stops, or None for no limit
    show_output: bool = False  # the agents forward the output of the ranks

    def log_folder(self, machine_index: int) -> Path:
        return Path(self.log_dir) / self.machines[machine_index].name

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def rank(self, name: str, machine_index: int, local_index: int) -> int | None:
        """Return the global rank of process ``local_index`` of a role on a machine, or None for roles without ranks."""
        ranked = any(role.name == name and role.ranked for role in self.roles)
        return machine_index * self.role(name).count + local_index if ranked else None


@dataclass(frozen=True)
class Limits:
    """Seconds that each stage may take. None means no limit."""

    serving: float = 300.0  # until all servers have loaded their parts and listen
    job: float | None = None  # for all of the training
    leaving: float = 20.0  # for the servers to end by themselves after the trainers
    stopping: float = 15.0  # for the agents to end everything
    cause: float = 5.0  # to wait for the cause of a lost connection
    stall: float | None = 120.0  # without any sign of progress anywhere
    saving: float = 0.0  # for the ranks to save in the middle of an epoch after SIGTERM; 0: they cannot
    silence: float = 30.0  # without a message from an agent, which sends one every 2 s
