"""The machines and the numbers of processes of a run, and the job on them."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tutorial_lib.errors import InputError, JobError
from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.job.ip_config import check_private, read_ip_config
from tutorial_lib.job.remote_files import RemoteFiles, Upload
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend, LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.persistent import PersistentBackend
from tutorial_lib.launcher.backends.remote import SlurmBackend, SshBackend
from tutorial_lib.launcher.coordinator import Coordinator, OnEvent
from tutorial_lib.launcher.jobspec import Limits


@dataclass(frozen=True)
class RealMachines:
    """Machines reached over ssh.

    Attributes:
        ip_config: file with one line 'address [port]' for each machine.
        ssh_port: port of the ssh servers. (default: from your ssh configuration)
        ssh_username: login on the machines. (default: from your ssh configuration)
        ssh_config: configuration file of ssh. (default: ~/.ssh/config)
        python: Python on the machines, with tutorial_lib. (default: the path of this one)
        copy_to: folder on the machines for copies of the data and for results, such as /scratch/job or '~/job'.
            (default: the machines share the partition and the run folder with this computer)
        allow_public: accept public addresses. DGL runs code that arrives on its ports, so use this only behind a
            firewall.
    """

    ip_config: Path = Path("ip_config.txt")
    ssh_port: int | None = None
    ssh_username: str | None = None
    ssh_config: Path | None = None
    python: str = sys.executable
    copy_to: str | None = None
    allow_public: bool = False

    def __post_init__(self) -> None:
        if self.copy_to is not None and self.copy_to != "~" and not self.copy_to.startswith(("/", "~/")):
            message = f"--copy_to {self.copy_to}: give an absolute path, or one from your home on the machines"
            raise InputError(message, "For example /scratch/job or '~/job', in quotes. Your shell would replace the ~.")


@dataclass(frozen=True)
class Layout:
    """Machines and processes of a run. Without emulated and real machines, the run uses this computer alone.

    Attributes:
        emulate: number of emulated machines.
        on: name of running emulated machines (see machines start). --emulate N takes the first N of them.
        wire: bandwidth of each emulated machine, such as 1gbit or 200mbit.
        own_disks: give each emulated machine a private, empty home, /tmp, data and run folder. The command copies the
            data to the machines and the results back.
        trainers: trainers per machine.
        samplers: sampler processes per trainer.
        servers: DGL servers per machine.
        server_threads: OpenMP threads of a server. (default: 1; on real machines its share of a quarter of the CPUs)
        real: machines over ssh.
        slurm: use the nodes of the Slurm allocation in which this command runs.
        subnet: with --slurm, the network of the job, such as 10.1.0.0/16. (default: that of the node names)
        show_output: print the output of the trainers.
        stall_timeout: seconds without progress after which the job is ended, or 0 for no limit.
        device: device of the model: cpu, cuda, or auto (GPUs if each rank has one). Batches are sampled on the CPU.
        serving_timeout: time limit in seconds for the DGL servers to load their parts.
        collective_timeout: time limit of a collective in seconds.
    """

    emulate: int | None = 2
    wire: str | None = None
    trainers: int = 1
    samplers: int = 0
    servers: int = 1
    server_threads: int | None = None
    real: RealMachines | None = None
    on: str | None = None
    own_disks: bool = False
    slurm: bool = False
    subnet: str | None = None
    show_output: bool = False
    stall_timeout: float | None = 120.0
    device: str = "cpu"
    serving_timeout: float = 300.0
    collective_timeout: float = 600.0

    def __post_init__(self) -> None:
        for name, least in {"trainers": 1, "samplers": 0, "servers": 1}.items():
            if (value := getattr(self, name)) < least:
                raise InputError(f"{name} must be at least {least}, got {value}")

    @property
    def elsewhere(self) -> bool:
        """Whether the machines are other computers. Emulated machines share the memory and the CPUs of this one."""
        return self.slurm or self.real is not None

    def cluster(self, *private: Path) -> Backend:
        """Return the backend, which is not entered. With ``own_disks``, the machines have no access to ``private``."""
        if self.device != "cpu":  # ranks on real machines check their GPUs
            import torch  # --help does not wait for it

            from tutorial_lib.trainer.placement import assign_gpus

            gpus = 10**6 if self.elsewhere else torch.cuda.device_count()
            assign_gpus(self.device, [("here", gpus)] * ((self.emulate or 1) * self.trainers))
        if self.slurm:
            return SlurmBackend(self.subnet, self.emulate)
        if self.on is not None:
            return PersistentBackend(self.on, self.emulate)
        if (real := self.real) is not None:
            if not real.ip_config.exists():
                remedy = "Write one line 'address [port]' for each machine, or use emulated machines: --emulate N"
                raise InputError(f"--ip_config {real.ip_config} does not exist", remedy)
            machines = read_ip_config(real.ip_config)[: self.emulate]
            if not real.allow_public:  # before they are contacted
                check_private(machines)
            login = {"port": real.ssh_port, "username": real.ssh_username}
            config = real.ssh_config and str(real.ssh_config.absolute())
            return SshBackend(machines, **login, config=config, python=real.python, copy_to=real.copy_to)
        if self.emulate is None:
            return LocalBackend(self.servers)
        return EmulatedBackend(self.emulate, wire=self.wire, own_disks=self.own_disks, private=private)

    def limits(self) -> Limits:
        return Limits(serving=self.serving_timeout, stall=self.stall_timeout or None)

    def plan(self, cluster: Backend, **fields: Any) -> JobPlan:
        """Return the plan of a job on machines whose agents have started, with further ``fields``."""
        if self.slurm:
            check_private(cluster.machines)
        threads = self.server_threads or (None if self.elsewhere else 1)
        return JobPlan(
            machines=cluster.machines,
            master_port=cluster.master_port,
            trainers=self.trainers,
            samplers=self.samplers,
            silence=cluster.traits.silence_seconds,
            collective_seconds=self.collective_timeout,
            show_output=self.show_output,
            **{"servers": self.servers, "server_threads": threads, **fields},
        )


def run_on_machines(
    agents: Agents, plan: JobPlan, limits: Limits, out: Path, on_event: OnEvent, uploads: Sequence[Upload]
) -> tuple[Coordinator, list[str]]:
    """Run a job. If the machines share no folder with this computer, upload its inputs and download its results.

    ``plan`` has the paths of this computer. Returns the coordinator and the results that could not be downloaded.
    """
    remote, files = plan, None
    with contextlib.ExitStack() as stack:
        if (copy_to := agents.backend.traits.copy_to) is not None:
            files = RemoteFiles(agents.backend, out, on_event, uploads)
            command = [files.locate(word) if word.startswith(f"{out}/") else word for word in plan.command]
            paths = {name: getattr(plan, name) for name in ("part_config", "ip_config", "log_dir")}
            moved = {name: files.locate(path) for name, path in paths.items() if path}
            remote = replace(plan, cwd=copy_to, command=command, **moved)
            on_event = stack.enter_context(files).on_event
        coordinator = Coordinator(agents, plan.to_spec(), on_event, limits, remote.to_spec())
        coordinator.run_job()
    return coordinator, files.problems if files else []


def check_results(missing: list[str]) -> None:
    """Raise a JobError if results of a successful job could not be downloaded."""
    if missing:
        message = f"the job ended well, but not all of its results are here: {missing[0]}"
        raise JobError(message, "\n".join(missing[1:]))
