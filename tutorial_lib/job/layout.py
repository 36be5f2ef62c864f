"""The machines and processes of a run, and ``run_on_machines``, which runs a job on them."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.ip_config import check_private, read_ip_config
from tutorial_lib.job.remote_files import RemoteFiles, Upload
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend, LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import PersistentBackend
from tutorial_lib.launcher.backends.remote import SlurmBackend, SshBackend
from tutorial_lib.launcher.coordinator import Coordinator, MachineUse, OnEvent
from tutorial_lib.launcher.jobspec import Limits


@dataclass(frozen=True)
class SshMachines:
    """Machines reached over ssh.

    Attributes:
        ip_config: File with one line 'address [port]' for each machine.
        ssh_port: Port of the ssh servers. (default: from your ssh configuration)
        ssh_username: User name on the machines. (default: from your ssh configuration)
        ssh_config: Configuration file of ssh. (default: ~/.ssh/config)
        python: Python on the machines, with tutorial_lib. (default: the path of this Python)
        copy_to: Folder on the machines for copies of the data and for results, such as /scratch/job or '~/job'.
            (default: the machines share the partition and the run folder with this computer)
        allow_public: Accept public addresses. Only behind a firewall, because DGL runs code that its ports receive.
    """

    ip_config: Path = Path("ip_config.txt")
    ssh_port: int | None = None
    ssh_username: str | None = None
    ssh_config: Path | None = None
    python: str = sys.executable
    copy_to: str | None = None
    allow_public: bool = False

    def __post_init__(self) -> None:
        if self.copy_to is not None and not re.match("/|~/|~$", self.copy_to):
            message = f"--copy_to {self.copy_to}: expected an absolute path, or a path that begins with ~/"
            raise InputError(message, "Write /scratch/job or '~/job'. Without quotes, your shell replaces the ~.")


@dataclass(frozen=True)
class Layout:
    """Machines, processes, device and limits of a run. Without emulated or real machines, it uses this computer alone.

    Attributes:
        emulate: Number of emulated machines.
        on: Name of running emulated machines (see machines start). The job uses all of them.
        wire: Bandwidth of each emulated machine, such as 1gbit or 200mbit.
        own_disks: Give each machine a private, empty home, /tmp, data and run folder, with copies of data and results.
        trainers: Trainers per machine.
        samplers: Sampler processes per trainer.
        servers: DGL servers per machine.
        server_threads: OpenMP threads of a server. (default: 1; on real machines its share of a quarter of the CPUs)
        slurm: Use the nodes of the Slurm allocation in which this command runs.
        subnet: With --slurm, the network of the job, such as 10.1.0.0/16. (default: that of the node names)
        show_output: Print the output of the trainers.
        timeout: Time limit of the trainers in seconds.
        stall_timeout: Seconds without progress after which the job is ended, or 0 for no limit.
        device: Device of the model: cpu, cuda, or auto (GPUs if each rank has one). Batches are sampled on the CPU.
        serving_timeout: Time limit in seconds for the DGL servers to load their parts.
        collective_timeout: Time limit of a collective in seconds.
    """

    emulate: int | None = 2
    wire: str | None = None
    trainers: int = 1
    samplers: int = 0
    servers: int = 1
    server_threads: int | None = None
    ssh_machines: SshMachines | None = None
    on: str | None = None
    own_disks: bool = False
    slurm: bool = False
    subnet: str | None = None
    show_output: bool = False
    timeout: float | None = None
    stall_timeout: float | None = 120.0
    device: str = "cpu"
    serving_timeout: float = 300.0
    collective_timeout: float = 600.0

    def make_backend(self, *private: Path) -> Backend:
        """Return the backend, which is not entered. With ``own_disks``, the machines have no access to ``private``."""
        if self.slurm:
            return SlurmBackend(self.subnet)
        if self.on is not None:
            return PersistentBackend(self.on)
        if (ssh := self.ssh_machines) is not None:
            machines = read_ip_config(ssh.ip_config)
            if not ssh.allow_public:  # before they are contacted
                check_private(machines)
            login = {"port": ssh.ssh_port, "username": ssh.ssh_username}
            config = ssh.ssh_config and str(ssh.ssh_config.absolute())
            return SshBackend(machines, **login, config=config, python=ssh.python, copy_to=ssh.copy_to)
        if self.emulate is None:
            return LocalBackend(self.servers)
        return EmulatedBackend(self.emulate, wire=self.wire, own_disks=self.own_disks, private=private)

    def limits(self, saving: float = 0.0) -> Limits:
        return Limits(serving=self.serving_timeout, job=self.timeout, stall=self.stall_timeout or None, saving=saving)

    def complete_job(self, job: DglJob, backend: Backend) -> DglJob:
        """Return a job with the processes of this layout. The agents of the machines must have started."""
        if self.ssh_machines is None:
            check_private(job.machines)  # a backend can look up addresses when the agents have started
        return replace(
            job,
            trainers=self.trainers,
            samplers=self.samplers,
            servers=self.servers,
            server_threads=self.server_threads or (1 if backend.traits.one_computer else None),
            silence=backend.traits.silence_seconds,
            collective_seconds=self.collective_timeout,
            show_output=self.show_output,
        )


def run_on_machines(
    agents: Agents, job: DglJob, limits: Limits, out: Path, on_event: OnEvent, uploads: Sequence[Upload]
) -> dict[str, MachineUse]:
    """Run a job, which has the paths of this computer, and return the resources that each machine used."""
    copy_to = agents.backend.traits.copy_to
    if copy_to is None:  # the machines share our folders
        return Coordinator(agents, job.to_spec(), on_event, limits).run_job()
    files = RemoteFiles(agents.backend, out, on_event, uploads)
    remote_job = replace(
        job,
        cwd=copy_to,
        command=[files.locate(word) if word.startswith(f"{out}/") else word for word in job.command],
        part_config=job.part_config and files.locate(job.part_config),
        ip_config=job.ip_config and files.locate(job.ip_config),
        log_dir=files.locate(job.log_dir),
    )
    with files:
        return Coordinator(agents, job.to_spec(), files.on_event, limits, remote_job.to_spec()).run_job()
