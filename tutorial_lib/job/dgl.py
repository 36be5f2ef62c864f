"""A DGL job: its plan, and the roles and variables that make it a job of the launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.jobspec import JobSpec, Machine, Role

CONNECT_TRIES = 20  # a client waits 3 s between tries: one minute, not the 51 of DGL's default
# Names of the files that the servers of a graph G make in /dev/shm (DGL 2.1.0): ``G``, ``G_node_inner_node``,
# ``GG_0_csc_indptr`` and others, ``dgl.graphbolt.G_data.lock``, and for each feature F ``node~_N~F-kvdata-``.
SHM_PATTERNS = [
    r".+-kvdata-",
    r"(.+)_node_(?:inner_node|_ID|meta|node_map)",
    r"(.+)_edge_(?:inner_edge|_ID|_TYPE|edge_map)",
    r"(.+)\1_\d+_(?:csc|csr|coo)_(?:indptr|indices|data|row|col)",
    r"dgl\.graphbolt\..+_(?:meta)?data(?:\.lock)?",
]
NOT_A_SERVER = "did the command reach dgl.distributed.initialize?"


@dataclass(frozen=True)
class JobPlan:
    """A job of DGL servers, trainers and samplers, or without a partition of plain ranks of torch.distributed.

    Attributes:
        machines: in the order of ip_config.txt. Machine k serves part k.
        command: program of a trainer. The same command with ``DGL_ROLE=server`` is a server.
        part_config: partition description (JSON), or an empty string for a job without DGL servers.
        ip_config: path of the address file, readable on every machine.
        log_dir: folder that gets one subfolder for each machine.
        cwd: working directory of every process.
        master_port: port on machine 0 where the trainers' process group meets.
        trainers, samplers, servers: per machine. Samplers are per trainer.
        graph_format: formats that a server builds. Neighbor sampling reads ``csc``.
        server_threads: OpenMP threads of a server. None is a quarter of the machine's CPUs, divided by the servers.
        omp_threads: OpenMP threads of a trainer. None divides the machine's CPUs by the trainers.
        env: extra variables for every process.
        shell: the command is ``/bin/sh -c TEXT``.
        silence: see ``JobSpec``.
        collective_seconds: time limit of the trainers' collectives.
        shm_of_trainers: bytes that the trainers will add to /dev/shm of each machine, if known.
        show_output: the agents forward the output of the trainers.
        forks: the command calls ``trainer.session.serve_if_server``, which forks servers and trainers.
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
        """Number of processes that connect to each server. With a wrong number, the servers wait forever."""
        return self.world_size * (1 + self.samplers)

    def to_json(self) -> str:
        """Return one line, as sent to a machine."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobPlan:
        """Return the plan of ``to_json``."""
        fields = json.loads(text)
        machines = [Machine(**{**machine, "cpus": tuple(machine["cpus"])}) for machine in fields["machines"]]
        return cls(**{**fields, "machines": machines})

    def log_folder(self, index: int) -> Path:
        """Return the folder of the logs of machine ``index``."""
        return Path(self.log_dir) / self.machines[index].name

    def dgl_environment(self) -> dict[str, str]:
        """Return the variables that DGL reads in every process."""
        return {
            "DGL_DIST_MODE": "distributed",
            "DGL_IP_CONFIG": self.ip_config,
            "DGL_CONF_PATH": self.part_config,
            "DGL_NUM_SERVER": str(self.servers),
            "DGL_NUM_SAMPLER": str(self.samplers),
            "DGL_NUM_CLIENT": str(self.num_clients),
            "DGL_GRAPH_FORMAT": self.graph_format,
            "DGL_DIST_MAX_TRY_TIMES": str(CONNECT_TRIES),
        }

    def to_spec(self) -> JobSpec:
        """Return the job as the launcher runs it."""
        command, serves = list(self.command), bool(self.part_config)
        env = {
            **(self.dgl_environment() if serves else {}),
            "DGLBACKEND": os.environ.get("DGLBACKEND", "pytorch"),
            "TUTORIAL_COLLECTIVE_SECONDS": f"{self.collective_seconds:g}",
        }
        own_command = None if self.forks else command
        server = Role(
            "server",
            self.servers,
            own_command,
            env={"DGL_ROLE": "server", "DGL_SERVER_ID": "{global_index}"},
            listens=True,
            service=True,
            threads=self.server_threads,
            cpu_share=0.25,
            early_end=NOT_A_SERVER,
        )
        trainer = Role(
            "trainer",
            self.trainers,
            own_command,
            env={"DGL_ROLE": "client"} if serves else {},
            ranked=True,
            after="server" if serves else None,
            threads=self.omp_threads,
        )
        return JobSpec(
            machines=list(self.machines),
            roles=[server, trainer] if serves else [trainer],
            cwd=self.cwd,
            log_dir=self.log_dir,
            master_port=self.master_port,
            env=env,
            user_env=dict(self.env),
            template=command if self.forks else None,
            shell=self.shell,
            startup_files=[str(Path(__file__).with_name("dgl_hook.py"))],
            worker_roles={"DGL_NUM_SAMPLER": "sampler"},
            shm_patterns=SHM_PATTERNS,
            silence=self.silence,
            show_output=self.show_output,
        )


def check_counts(trainers: int, samplers: int, servers: int, prefix: str = "--") -> None:
    """Raise an InputError for an impossible number of processes. ``prefix`` is that of the user's options."""
    for name, value, least in [("trainers", trainers, 1), ("samplers", samplers, 0), ("servers", servers, 1)]:
        if value < least:
            raise InputError(f"{prefix}{name} must be at least {least}, got {value}")


def check_parts(parts: int, machines: int, where: Path) -> None:
    """Raise an InputError unless there is one part for each machine."""
    if parts != machines:
        raise InputError(
            f"{where} has {parts} parts for {machines} machines; each machine serves one part",
            f"Use --emulate {parts}, or partition again with --parts {machines}.",
        )
