"""Nodes of a Slurm allocation. ``srun`` starts each process in a separate step, so the nodes need no ssh.

The command runs inside the allocation, in a script of ``sbatch`` or in a shell of ``salloc``. Slurm ends all steps when
the allocation ends.
"""

import contextlib
import ipaddress
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import Traits
from tutorial_lib.launcher.backends.remote import RemoteBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Hello

TRAITS = Traits(
    shares_computer=False,
    private_shm=False,
    silence_seconds=30.0,
    answer_seconds=60.0,  # some nodes must wake up first, and load Python over the network
    place="node {0.name}",
)
# With --overlap and --mem=0, steps share the CPUs and the memory of the job, so no step waits until another one ends.
# With --chdir=/, srun does not replace a missing working directory by /tmp with a warning.
STEP = ["--overlap", "--mem=0", "--chdir=/", "--nodes=1", "--ntasks=1"]
STEP += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--quiet"]


class SlurmBackend(RemoteBackend):
    """The nodes of this allocation. Node k serves part k.

    Args:
        subnet: network that the job uses, such as ``"10.1.0.0/16"``. The default uses the addresses of the host names.
        count: number of nodes. The default uses all nodes.

    Raises:
        InputError: the command does not run in an allocation.
    """

    def __init__(self, subnet: str | None = None, count: int | None = None) -> None:
        try:
            self.subnet = None if subnet is None else ipaddress.IPv4Network(subnet)
        except ValueError as error:
            raise InputError(f"--subnet {subnet}: {error}", "Write it like 10.1.0.0/16.") from None
        nodes = list_nodes()
        if count is not None and count > len(nodes):
            raise InputError(f"{count} machines are wanted, and the allocation has {len(nodes)} nodes")
        super().__init__([Machine(node, "") for node in nodes[:count]], TRAITS)

    def resolve(self, hellos: Sequence[Hello]) -> None:
        """Find the address of each node. An InputError reports a node without one that the other nodes can use."""
        pairs = zip(self.machines, hellos, strict=True)
        self.machines = [replace(node, address=self._choose_address(node.name, hello)) for node, hello in pairs]

    def _choose_address(self, node: str, hello: Hello) -> str:
        found = {card: ips[0] for card, ips in hello.addresses.items() if not ips[0].startswith("127.")}
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

    def remedy(self, machine: Machine, last_words: str) -> str:
        if not last_words:
            return f"Look at the state of the node: scontrol show node {machine.name}"
        return f"Try it by hand: srun --overlap -N1 -n1 -w {machine.name} {self.python} -c 'import tutorial_lib'"

    def _client(self, machine: Machine, line: str) -> list[str]:
        return ["srun", *STEP, f"--nodelist={machine.name}", "sh", "-c", line]


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
