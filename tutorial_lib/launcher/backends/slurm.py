"""Nodes of a Slurm allocation. ``srun`` starts each process in a separate step, so the nodes need no ssh.

The command runs inside the allocation, in a script of ``sbatch`` or in a shell of ``salloc``. Slurm ends all steps when
the allocation ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends.remote import RemoteBackend
from tutorial_lib.launcher.environment import run_module
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.network import ipv4_addresses

ANSWER_SECONDS = 60.0  # some nodes must wake up first, and load Python over the network
# With --overlap and --mem=0, steps share the CPUs and the memory of the job, so no step waits until another one ends.
# With --chdir=/, srun does not replace a missing working directory by /tmp with a warning.
STEP = ["--overlap", "--mem=0", "--chdir=/", "--nodes=1", "--ntasks=1"]
STEP += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--quiet"]


class SlurmBackend(RemoteBackend):
    """The nodes of this allocation. ``with SlurmBackend() as cluster: cluster.popen(...)``.

    Entering finds the address of each node. Node k serves part k.

    Args:
        subnet: network that the job uses, such as ``"10.1.0.0/16"``. The default uses the addresses of the host names.
        count: number of nodes. The default uses all nodes.

    Raises:
        InputError: the command does not run in an allocation, or a node cannot be used.
    """

    def __init__(self, subnet: str | None = None, count: int | None = None) -> None:
        try:
            self.subnet = None if subnet is None else ipaddress.IPv4Network(subnet)
        except ValueError as error:
            raise InputError(f"--subnet {subnet}: {error}", "Write it like 10.1.0.0/16.") from None
        nodes = list_nodes()
        if count is not None and count > len(nodes):
            raise InputError(f"{count} machines are wanted, and the allocation has {len(nodes)} nodes")
        super().__init__([Machine(node, "") for node in nodes[:count]])

    def __enter__(self) -> SlurmBackend:
        places = [f"node {machine.name}" for machine in self.machines]
        answers = self._ask(run_module(sys.executable, __name__), places, ANSWER_SECONDS)
        for k, answer in enumerate(answers):
            node = self.machines[k]
            self.machines[k] = replace(
                node, address=self._choose_address(node.name, json.loads(answer.splitlines()[-1]))
            )
        return self

    def _choose_address(self, node: str, found: Mapping[str, str]) -> str:
        """Return the address of one of the node's network cards that the other nodes can use."""
        shown = ", ".join(f"{address} ({card})" for card, address in found.items()) or "none"
        if self.subnet is not None:
            inside = [address for address in found.values() if ipaddress.IPv4Address(address) in self.subnet]
            if len(inside) != 1:
                raise InputError(f"node {node}: {len(inside)} of its addresses are in --subnet {self.subnet}: {shown}")
            return inside[0]
        with contextlib.suppress(OSError):
            if (named := socket.gethostbyname(node)) in found.values():
                return named
        if len(found) != 1:
            remedy = "Choose the network of the job: --subnet 10.1.0.0/16"
            raise InputError(f"node {node}: its name is no address of its network cards: {shown}", remedy)
        return next(iter(found.values()))

    def _client(self, machine: Machine, line: str) -> list[str]:
        return ["srun", *STEP, f"--nodelist={machine.name}", "sh", "-c", line]

    def _remedy(self, machine: Machine, said: str) -> str:
        if not said:
            return f"Look at the state of the node: scontrol show node {machine.name}"
        return f"Try it by hand: srun --overlap -N1 -n1 -w {machine.name} {self.python} -c 'import tutorial_lib'"


def list_nodes() -> list[str]:
    """Return the names of the nodes of the allocation."""
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if listed is None or shutil.which("scontrol") is None or shutil.which("srun") is None:
        remedy = "Ask for nodes first: salloc --nodes 2 --ntasks-per-node 1. For sbatch, submit writes a script."
        raise InputError("--slurm: this is not inside a Slurm allocation", remedy)
    command = ["scontrol", "show", "hostnames", listed]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        raise InputError(f"{shlex.join(command)}: {said}") from None


def print_addresses() -> None:
    """Print the first IPv4 address of each network card of this node as JSON."""
    found = {card: addresses[0] for card, addresses in ipv4_addresses().items()}
    print(json.dumps({card: address for card, address in found.items() if not address.startswith("127.")}))


if __name__ == "__main__":
    print_addresses()
