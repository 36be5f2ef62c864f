"""Nodes of a Slurm allocation: each agent is started by ``srun`` in a step of its own, so nobody needs ssh.

The command runs inside the allocation: in the script of ``sbatch``, on its first node, or in the shell of ``salloc``.
Slurm ends what it has started when the allocation ends; an agent also ends by itself when its way home is gone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from tutorial_lib.cluster.environment import run_module
from tutorial_lib.cluster.network import ipv4_addresses
from tutorial_lib.cluster.spec import Machine, RemoteCluster
from tutorial_lib.errors import InputError

ANSWER_SECONDS = 60.0  # a node may have to be woken up, and loads Python over the network
# Steps share CPUs and memory of the job: an agent must not wait until another step ends.
STEP = ["--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--kill-on-bad-exit=1", "--quiet"]


class SlurmCluster(RemoteCluster):
    """The nodes of the allocation that this process runs in. ``with SlurmCluster() as cluster: cluster.popen(...)``.

    On entering, every node is asked for its addresses, all at once; node k serves part k.

    Args:
        subnet: ``"10.1.0.0/16"``: which address of a node the others use; None: that of its name.
        count: of nodes, the first ones; None: all.

    Raises:
        InputError: this is no allocation, or a node cannot be used; and what to do about it.
    """

    def __init__(self, subnet: str | None = None, count: int | None = None) -> None:
        try:
            self.subnet = None if subnet is None else ipaddress.IPv4Network(subnet)
        except ValueError as error:
            raise InputError(f"--subnet {subnet}: {error}", "Write it like 10.1.0.0/16.") from None
        nodes, cpus = nodes_of(os.environ), cpus_of(os.environ)
        if count is not None and count > len(nodes):
            raise InputError(f"{count} machines are wanted, and the allocation has {len(nodes)} nodes")
        # What does not say it for each node has been changed by hand: a CPU each is there in any case.
        self.cpus = dict(zip(nodes[:count], cpus if len(cpus) == len(nodes) else [1] * len(nodes), strict=False))
        super().__init__([Machine(node, "") for node in self.cpus])

    def __enter__(self) -> SlurmCluster:
        places = [f"node {machine.name}" for machine in self.machines]
        answers = self._ask(run_module(sys.executable, __name__), places, ANSWER_SECONDS)
        found = zip(self.machines, (json.loads(answer.strip().splitlines()[-1]) for answer in answers), strict=True)
        self.machines = [replace(machine, address=self._address(machine.name, cards)) for machine, cards in found]
        return self

    def _address(self, node: str, found: Mapping[str, str]) -> str:
        """Which of its addresses (by name of the network card) the other nodes use."""
        shown = ", ".join(f"{address} ({card})" for card, address in found.items()) or "none"
        if self.subnet is not None:
            inside = [address for address in found.values() if ipaddress.IPv4Address(address) in self.subnet]
            if len(inside) != 1:
                raise InputError(f"node {node}: {len(inside)} of its addresses are in --subnet {self.subnet}: {shown}")
            return inside[0]
        with contextlib.suppress(OSError):
            if (named := socket.gethostbyname(node)) in found.values():
                return named
        if len(found) == 1:
            return next(iter(found.values()))
        remedy = "Say which network the job is to use: --subnet 10.1.0.0/16"
        raise InputError(f"node {node}: its name is no address of its network cards: {shown}", remedy)

    def _client(self, machine: Machine, line: str) -> list[str]:
        # Not srun's own --chdir to the working directory: it would go on in /tmp where there is no such folder.
        step = [*STEP, f"--nodelist={machine.name}", f"--cpus-per-task={self.cpus[machine.name]}", "--chdir=/"]
        return ["srun", *step, "sh", "-c", line]

    def _remedy(self, machine: Machine, said: str) -> str:
        if not said:
            return f"What does Slurm know of it? scontrol show node {machine.name}"
        return f"Try it by hand: srun --overlap -N1 -n1 -w {machine.name} {self.python} -c 'import tutorial_lib'"


def nodes_of(environ: Mapping[str, str]) -> list[str]:
    """Names of the nodes of the allocation.

    Raises:
        InputError: there is none.
    """
    listed = environ.get("SLURM_JOB_NODELIST")
    if listed is None or shutil.which("scontrol") is None or shutil.which("srun") is None:
        remedy = "Ask for nodes first: salloc --nodes 2 --ntasks-per-node 1. For sbatch, submit writes a script."
        raise InputError("--slurm: this is not inside a Slurm allocation", remedy)
    return _scontrol("show", "hostnames", listed).split()


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"scontrol {shlex.join(words)}: {error}") from None
    if done.returncode != 0:
        raise InputError(f"scontrol {shlex.join(words)}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout


def cpus_of(environ: Mapping[str, str]) -> list[int]:
    """CPUs that the job has on each node: ``"2(x2),4"`` to ``[2, 2, 4]``."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return [int(cpus) for cpus, times in found for _ in range(int(times or 1))]


def main() -> None:
    """On a node: the IPv4 address of each network card, without loopback."""
    found = {card: addresses[0] for card, addresses in ipv4_addresses().items()}
    print(json.dumps({card: address for card, address in found.items() if not address.startswith("127.")}))


if __name__ == "__main__":
    main()
