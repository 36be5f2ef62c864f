"""A small Slurm on emulated machines that stay: ``machines start 2 --slurm``, then ``on machine-0 sbatch job.sh``.

Debian's packages slurmctld, slurmd, slurm-client and munge, as on a cluster, with a configuration of their own. Each
daemon runs on its machine; the controller is machine 0. Needs root: Slurm changes to the user whose job it runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.spec import KILLED_SECONDS, Machine, wait_or_kill
from tutorial_lib.errors import InputError, attempts
from tutorial_lib.files import find_program

SERVER_SECONDS = 30.0
DAEMONS = ("munged", "slurmctld", "slurmd")
SOCKET = "/dev/shm/munge.socket"  # each machine's /dev/shm is its own
ETC = "/etc/slurm"  # where the commands look; each machine sees the folder of its cluster there
# linuxproc and none: no control groups, which a container may not give. One CPU of this computer is one of each node.
SETTINGS = """\
ClusterName={name}
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdTimeout=20
KillWait=15
MinJobAge=3600
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
"""


@contextlib.contextmanager
def slurm_servers(cluster: EmulatedCluster, name: str) -> Iterator[None]:
    """Start munge and Slurm on the machines of an entered cluster, and wait until its nodes are ready.

    Raises:
        InputError: a program or the right to do so is missing, or a daemon does not start.
    """
    if missing := [daemon for daemon in DAEMONS if find_program(daemon) is None]:
        remedy = "Install them: sudo apt install slurmctld slurmd slurm-client munge"
        raise InputError(f"--slurm: this computer has no {', '.join(missing)}", remedy)
    if os.geteuid() != 0 or not Path(ETC).is_dir():
        remedy = f"As root, with a folder {ETC} (the package slurm-client makes it). Else use your cluster's own Slurm."
        raise InputError("--slurm: a Slurm of your own needs root on this computer", remedy)
    prefix = f"tutorial_lib-{os.getuid()}-{name}.slurm-"  # a name has no dot: not the folder of lab-slurm
    for stale in Path(tempfile.gettempdir()).glob(f"{prefix}*"):  # of a keeper that was killed
        shutil.rmtree(stale, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        # The kernel ends the daemons with the machines, perhaps while one writes a file.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        _write_configuration(cluster.machines, name, Path(folder))

        def run(machine: Machine, *words: str) -> str:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = cluster.popen(machine, words, **pipes)
            try:
                return process.communicate(timeout=60)[0].decode(errors="replace").strip()
            finally:
                wait_or_kill(process, 0)

        def start(machine: Machine, daemon: str, *options: str) -> None:
            command = [find_program(daemon) or daemon, *options]
            with (log := Path(folder, f"{daemon}-{machine.name}.log")).open("wb") as stream:
                process = cluster.popen(machine, command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
            stack.callback(wait_or_kill, process, KILLED_SECONDS)
            stack.callback(process.terminate)  # not killed, as in `ssh_servers`
            daemons.append((process, log))

        daemons: list[tuple[subprocess.Popen, Path]] = []
        for machine in cluster.machines:
            if said := run(machine, "mount", "--bind", f"{folder}/etc", ETC):
                raise InputError(f"--slurm, on {machine.name}: {said}")
            own = [f"--{kind}-file={folder}/munge-{machine.name}.{kind}" for kind in ("pid", "seed", "log")]
            start(machine, "munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={SOCKET}", *own)
        start(cluster.machines[0], "slurmctld", "-D")
        for machine in cluster.machines:
            start(machine, "slurmd", "-D", "-N", machine.name)
        for _left in attempts("the nodes of Slurm to be ready", SERVER_SECONDS):
            if run(cluster.machines[0], "sinfo", "-h", "-p", "main", "-o", "%T %D") == f"idle {len(cluster.machines)}":
                break
            for process, log in daemons:
                if process.poll() is not None:
                    last = (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1]
                    raise InputError(f"--slurm: {log.stem} ended: {last}")
        yield


def _write_configuration(machines: Sequence[Machine], name: str, folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "etc").mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    settings = SETTINGS.format(name=name, first=machines[0], folder=folder, socket=SOCKET)
    cpus = len(os.sched_getaffinity(0))
    nodes = "".join(f"NodeName={m.name} NodeAddr={m.address} CPUs={cpus}\n" for m in machines)
    parts = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1\n"
    parts += "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2\n"
    (folder / "etc" / "slurm.conf").write_text(settings + nodes + parts)
    (folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
