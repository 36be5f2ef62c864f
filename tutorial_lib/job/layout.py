"""Which machines a run uses, and how many processes of each kind."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.cluster.coordinator import Limits
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.local import LocalCluster
from tutorial_lib.cluster.plan import check_counts
from tutorial_lib.cluster.spec import Cluster, read_ip_config
from tutorial_lib.cluster.ssh import SshCluster
from tutorial_lib.errors import InputError


@dataclass(frozen=True)
class RealMachines:
    """Machines reached over ssh.

    Attributes:
        ip_config: file with one ``address [port]`` a line.
        ssh_port, ssh_username: None leaves them to the user's ssh configuration.
        python: interpreter on the machines, with tutorial_lib.
        copy_to: folder on the machines that gets the data and gives back the results, absolute or from the login's home
            (``~/x``); None: the partition and the run folder are on a file system that all machines share.
        allow_public: accept addresses that anybody may reach; DGL runs code that arrives on its ports.
    """

    ip_config: Path
    ssh_port: int | None = None
    ssh_username: str | None = None
    python: str = sys.executable
    copy_to: str | None = None
    allow_public: bool = False

    def __post_init__(self) -> None:
        if self.copy_to is not None and self.copy_to != "~" and not self.copy_to.startswith(("/", "~/")):
            raise InputError(
                f"--copy_to {self.copy_to}: give an absolute path, or one from your home on the machines",
                "For example /scratch/job or '~/job' (in quotes: your shell here would replace the ~).",
            )


def cluster_of(emulate: int | None, wire: str | None, real: RealMachines | None, servers: int) -> Cluster:
    """Machines over ssh, else emulated ones, else this machine alone; not yet started.

    Raises:
        InputError: the address file of real machines cannot be used.
    """
    if real is not None:
        if not real.ip_config.exists():
            raise InputError(
                f"--ip_config {real.ip_config} does not exist",
                "Write one line 'address [port]' for each machine, or use --emulate N to have machines made.",
            )
        machines = read_ip_config(real.ip_config)
        return SshCluster(machines, port=real.ssh_port, username=real.ssh_username, python=real.python)
    if emulate is None:
        return LocalCluster(servers)
    return EmulatedCluster(emulate, wire=wire)


@dataclass(frozen=True)
class Layout:
    """Machines and processes of a run.

    Attributes:
        emulate: number of emulated machines; None with ``real`` None is this machine alone, without namespaces.
        real: machines over ssh.
        device: "cpu", "cuda" or "auto" for the model, see ``placement``; sampling is on the CPU in any case.
        stall_timeout: seconds without any progress after which the job is ended; None for no limit.
        serving_timeout: seconds that the servers may take to load their parts.
        collective_timeout: seconds that a rank waits for the others in one collective.
    """

    emulate: int | None = 2
    wire: str | None = None
    trainers: int = 1
    samplers: int = 0
    servers: int = 1
    real: RealMachines | None = None
    stall_timeout: float | None = 120.0
    device: str = "cpu"
    serving_timeout: float = 300.0
    collective_timeout: float = 600.0

    def __post_init__(self) -> None:
        check_counts(self.trainers, self.samplers, self.servers)

    def check_device(self) -> None:
        """Whether this computer has what ``device`` asks for; real machines are asked when the ranks have met.

        Raises:
            InputError: it has not.
        """
        if self.device == "cpu":
            return
        from tutorial_lib.trainer.placement import check_device  # torch: the command line's help does not wait for it

        gpus = 10**6 if self.real is not None else None
        check_device(self.device, (self.emulate or 1) * self.trainers, gpus)

    def cluster(self) -> Cluster:
        """The machines, not yet started; see ``cluster_of``."""
        return cluster_of(self.emulate, self.wire, self.real, self.servers)

    def limits(self) -> Limits:
        """Time limits of the stages."""
        return Limits(serving=self.serving_timeout, stall=self.stall_timeout)
