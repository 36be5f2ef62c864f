"""A DGL job: its plan, and the roles and variables that make it a job of the launcher."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.jobspec import JobSpec, Machine, Role

CONNECT_TRIES = 20  # a client waits 3 s between tries: one minute, not the 51 of DGL's default
NOT_A_SERVER = "did the command reach dgl.distributed.initialize?"
# Files in /dev/shm of DGL 2.1.0. For a graph G, they are G, G_node_inner_node, GG_0_csc_indptr and others. Those of a
# feature F, node~_N~F-kvdata-, contain no name of a graph.
SHM_PATTERNS = [
    r".+-kvdata-",
    r"(.+)_node_(?:inner_node|_ID|meta|node_map)",
    r"(.+)_edge_(?:inner_edge|_ID|_TYPE|edge_map)",
    r"(.+)\1_\d+_(?:csc|csr|coo)_(?:indptr|indices|data|row|col)",
    r"dgl\.graphbolt\..+_(?:meta)?data(?:\.lock)?",
]


@dataclass(frozen=True)
class JobPlan:
    """A job of DGL servers, trainers and samplers, or without a partition of plain ranks of torch.distributed."""

    machines: Sequence[Machine]  # in the order of ip_config.txt; machine k serves part k
    command: Sequence[str]  # program of a trainer; with DGL_ROLE=server, it is a server
    part_config: str  # partition description (JSON), or an empty string for a job without DGL servers
    ip_config: str  # path of the address file, readable on every machine
    log_dir: str  # folder that gets one subfolder for each machine
    cwd: str  # working directory of every process
    master_port: int  # on machine 0, where the trainers' process group meets
    trainers: int = 1  # per machine
    samplers: int = 0  # per trainer
    servers: int = 1  # per machine
    graph_format: str = "csc"  # formats that a server builds; neighbor sampling reads csc
    server_threads: int | None = 1  # OpenMP threads; None: a quarter of the machine's CPUs, divided by the servers
    omp_threads: int | None = None  # of a trainer; None: the machine's CPUs, divided by the trainers
    env: dict[str, str] = field(default_factory=dict)  # further variables of every process
    shell: bool = False  # the command is /bin/sh -c TEXT
    silence: float | None = None  # see JobSpec
    collective_seconds: float = 600.0  # time limit of the trainers' collectives
    shm_of_trainers: int = 0  # bytes that the trainers will add to /dev/shm of each machine, if known
    show_output: bool = False  # the agents forward the output of the trainers
    forks: bool = False  # the command calls trainer.session.serve_if_server, which forks servers and trainers

    @property
    def world_size(self) -> int:
        """Number of trainers on all machines."""
        return len(self.machines) * self.trainers

    @property
    def num_clients(self) -> int:
        """Number of processes that connect to each server. With a wrong number, the servers wait forever."""
        return self.world_size * (1 + self.samplers)

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
        """Return the job as the launcher runs it.

        Raises:
            InputError: ``env`` changes a variable of DGL that belongs to the job.
        """
        serves, job = bool(self.part_config), self.dgl_environment()
        for name in job.keys() & self.env.keys() - {"DGL_GRAPH_FORMAT", "DGL_DIST_MAX_TRY_TIMES"} if serves else ():
            if self.env[name] != job[name]:
                message = f"{name} is set to {self.env[name]!r}, the job needs {job[name]!r}"
                raise InputError(message, "Leave the variable out of --extra_envs: the job sets it.")
        env = {
            **(job if serves else {}),
            "DGLBACKEND": os.environ.get("DGLBACKEND", "pytorch"),
            "TUTORIAL_COLLECTIVE_SECONDS": f"{self.collective_seconds:g}",
        }
        own_command = None if self.forks else list(self.command)
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
            template=list(self.command) if self.forks else None,
            shell=self.shell,
            startup_files=[str(Path(__file__).with_name("dgl_hook.py"))],
            worker_roles={"DGL_NUM_SAMPLER": "sampler"},
            checks=[("tutorial_lib.job.parts:check_part", self._part_arguments())] if serves else [],
            same_packages=["torch", "dgl"],
            shm_patterns=SHM_PATTERNS,
            silence=self.silence,
            show_output=self.show_output,
        )

    def _part_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``parts.check_part``."""
        words = [word.lower().replace("-", "_") for word in self.command]
        return {
            "part_config": self.part_config,
            "ip_config": self.ip_config,
            "machines": len(self.machines),
            "graphbolt": any(word.startswith("__use_graphbolt") for word in words),
            "formats": self.graph_format.count(",") + 1,
            "shm_of_trainers": self.shm_of_trainers,
        }
