"""Slurm on emulated machines: ``python -m support.sandbox 2``, in the folder ``notebooks`` and as root.

Install Debian's packages slurmctld, slurmd, slurm-client and munge. Each machine runs ``slurmd`` and ``munged``, and
machine 0 runs the controller. Slurm needs root because its daemons change to the user of a job.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tutorial_lib.errors import InputError, TutorialError, retry_until_timeout
from tutorial_lib.launcher.backends import persistent, wait_or_kill
from tutorial_lib.launcher.backends.persistent import PersistentBackend, find_program
from tutorial_lib.launcher.jobspec import Machine

COMMAND_SECONDS = 60.0
READY_SECONDS = 30.0
DAEMONS = ("munged", "slurmctld", "slurmd")
SOCKET = "/dev/shm/munge.socket"  # every machine has a private /dev/shm
ETC = "/etc/slurm"  # where the commands look: each machine mounts the folder of its cluster there
# linuxproc and none: no control groups, because a container may not allow them. Each node has all CPUs.
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


def check_slurm() -> None:
    """Raise an InputError if this computer has no Slurm, or if this user cannot run it."""
    if missing := [daemon for daemon in DAEMONS if find_program(daemon) is None]:
        remedy = "Install them: sudo apt install slurmctld slurmd slurm-client munge"
        raise InputError(f"this computer has no {', '.join(missing)}", remedy)
    if os.geteuid() != 0 or not Path(ETC).is_dir():
        remedy = f"Run it as root, with a folder {ETC} (the package slurm-client creates it)."
        raise InputError("Slurm on emulated machines needs root on this computer", remedy)


@contextlib.contextmanager
def slurm_machines(count: int, *, name: str = persistent.DEFAULT_NAME, ttl: str = "8h") -> Iterator[str]:
    """Start machines with Slurm, yield their name, and stop them at the end."""
    start_slurm_machines(count, name=name, ttl=ttl)
    try:
        yield name
    finally:
        if name in persistent.running_names():
            persistent.stop_machines(name)


def start_slurm_machines(count: int, *, name: str = persistent.DEFAULT_NAME, ttl: str = "8h") -> None:
    """Start persistent machines with Slurm, and wait until all nodes are idle.

    Raises:
        InputError: a program or the right to run it is missing, or a daemon does not start.
    """
    check_slurm()
    cluster = persistent.start_machines(count, name=name, ttl=ttl)
    try:
        _start_slurm(PersistentBackend(name), name, Path(cluster.folder))
    except BaseException:
        persistent.stop_machines(name)
        raise


def _start_slurm(cluster: PersistentBackend, name: str, folder: Path) -> None:
    """Start the daemons. Each runs in the background and ends with its machine."""
    _write_configuration(cluster.machines, name, folder)
    first = cluster.machines[0]
    for machine in cluster.machines:
        _run(cluster, machine, "mount", "--bind", f"{folder}/etc", ETC)
        files = [f"--{kind}-file={folder}/munge-{machine.name}.{kind}" for kind in ("pid", "seed", "log")]
        _run(cluster, machine, "munged", "--force", f"--key-file={folder}/key", f"--socket={SOCKET}", *files)
    _run(cluster, first, "slurmctld", "-L", f"{folder}/slurmctld.log")
    for machine in cluster.machines:
        _run(cluster, machine, "slurmd", "-N", machine.name, "-L", f"{folder}/slurmd-{machine.name}.log")
    for _left in retry_until_timeout("the nodes of Slurm to be ready", READY_SECONDS, remedy=f"Logs: {folder}"):
        states = _run(cluster, first, "sinfo", "-h", "-p", "main", "-o", "%T %D", check=False)
        if states == f"idle {len(cluster.machines)}":
            return


def _run(cluster: PersistentBackend, machine: Machine, program: str, *words: str, check: bool = True) -> str:
    """Return the output of a program on a machine. Raises InputError if it fails, unless ``check`` is False."""
    command = [find_program(program) or program, *words]
    with (Path(cluster.folder or "") / f"{machine.name}.out").open("w+b") as output:  # a daemon would hold a pipe open
        process = cluster.popen(machine, command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        wait_or_kill(process, COMMAND_SECONDS)
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if check and process.returncode != 0:
        raise InputError(f"{program} on {machine.name}: {text or f'exit code {process.returncode}'}")
    return text


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


def main() -> None:
    """Start machines with Slurm, and print how to use them."""
    parser = argparse.ArgumentParser(prog="python -m support.sandbox", description="Start Slurm on emulated machines.")
    parser.add_argument("count", type=int, nargs="?", default=2, help="number of machines (default: 2)")
    parser.add_argument("--name", default=persistent.DEFAULT_NAME, help="name of the machines (default: %(default)s)")
    parser.add_argument("--ttl", default="8h", help="stop the machines after this time (default: %(default)s)")
    options = parser.parse_args()
    try:
        start_slurm_machines(options.count, name=options.name, ttl=options.ttl)
    except TutorialError as error:
        print(f"error: {error.message}", *error.remedy.splitlines(), sep="\n  ", file=sys.stderr)
        sys.exit(error.exit_code)
    on = "python -m tutorial_lib on" + ("" if options.name == persistent.DEFAULT_NAME else f" --name {options.name}")
    print(f"{options.count} machines are running with Slurm")
    print(f"Slurm:      {on} machine-0 sinfo    (also srun, sbatch, squeue, scancel)")
    print(f"They stop after {options.ttl}, or with:  python -m tutorial_lib machines stop {options.name}")


if __name__ == "__main__":
    main()
