"""Machines on which a client program starts processes: ssh, or srun in a Slurm allocation.

Each process on a machine has one client, and an agent ends when its connection ends. If the network fails silently, ssh
notices missing replies to its keep-alives, and the agent misses the pings that the coordinator sends every 5 s.
"""

import contextlib
import getpass
import ipaddress
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import Backend, Traits
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Hello

# ssh must not ask questions. Users decide which machines they trust, so ssh refuses unknown host keys.
SSH = ["ssh", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=4"]
SSH += ["-oLogLevel=ERROR", "-oClearAllForwardings=yes", "-T"]
REMEDIES = {  # pattern in the last line of ssh: advice. The first match counts
    "Host key|known_hosts": "Compare the key of the machine and accept it once by hand: ssh {login}",
    "Permission denied": "Set up a login of {user} without a password: ssh-keygen -t ed25519 (once), then ssh-copy-id "
    "{login}. A key with a passphrase needs a running ssh-agent.",
    "refused": "No ssh server listens on port {port}. Install openssh-server, or set --ssh_port.",
    "timed out|No route": "Check that {address} is correct, and that the machine is on and not behind a firewall.",
    "": "Try it by hand: ssh {login} {python} -c 'import tutorial_lib'",
}
# With --overlap and --mem=0, steps share the CPUs and the memory of the job, so no step waits until another one ends.
# With --chdir=/, srun does not replace a missing working directory by /tmp with a warning.
SRUN = ["srun", "--overlap", "--mem=0", "--chdir=/", "--nodes=1", "--ntasks=1"]
SRUN += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--quiet"]


class ClientBackend(Backend):
    """Machines on which the program ``client`` passes one line to a shell. Their ``python`` must have tutorial_lib."""

    traits = Traits(one_computer=False, silence_seconds=30.0)
    python = sys.executable
    subnet: ipaddress.IPv4Network | None = None  # of the missing addresses. None: they belong to the machines' names

    def client(self, machine: Machine) -> list[str]:
        """Return the command of the client, to which the line is added."""
        raise NotImplementedError

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        line = shlex.join(self.python if str(word) == sys.executable else str(word) for word in argv)
        kwargs.setdefault("stdin", subprocess.DEVNULL)  # the client would read the user's terminal
        # ~/.bashrc may print a text without an end of line, and a home may contain a random.py that Python would import
        command = [*self.client(machine), f"echo; cd / && exec {line}"]
        return subprocess.Popen(command, start_new_session=True, **kwargs)

    def resolve(self, hellos: Sequence[Hello]) -> None:
        """Find missing addresses. An InputError reports a machine without one that the other machines can use."""
        pairs = zip(self.machines, hellos, strict=True)
        self.machines = [m if m.address else replace(m, address=self._choose_address(m, hello)) for m, hello in pairs]

    def _choose_address(self, machine: Machine, hello: Hello) -> str:
        cards = {ips[0]: card for card, ips in hello.addresses.items() if not ips[0].startswith("127.")}
        usable = [ip for ip in cards if self.subnet is None or ipaddress.IPv4Address(ip) in self.subnet]
        if self.subnet is None:
            with contextlib.suppress(OSError):
                usable = sorted(cards.keys() & {socket.gethostbyname(machine.name)}) or usable
        if len(usable) == 1:
            return usable[0]
        criterion = f"are in --subnet {self.subnet}" if self.subnet else "match its name"
        shown = ", ".join(f"{ip} ({card})" for ip, card in cards.items()) or "none"
        message = f"{self.traits.label.format(machine)}: {len(usable)} of its addresses {criterion}: {shown}"
        raise InputError(message, "Choose the network of the job, for example: --subnet 10.1.0.0/16")


class SshBackend(ClientBackend):
    """Machines reached with the user's ssh client and configuration."""

    traits = replace(ClientBackend.traits, label="ssh to {0.address}", reads_ip_config=True)

    def __init__(
        self,
        machines: Sequence[Machine],
        *,
        port: int | None = None,
        username: str | None = None,
        config: str | None = None,
        python: str = sys.executable,
        copy_to: str | None = None,
    ) -> None:
        if shutil.which("ssh") is None:
            raise InputError("no ssh client on this computer", "Install one: sudo apt install openssh-client")
        self.machines = list(machines)
        self.port = port
        self.username = username
        self.python = python
        ssh_options = {"port": port, "username": username, "config": config}
        self.traits = replace(self.traits, copy_to=copy_to, ssh_options=ssh_options)
        # With ``-l`` and ``--``, a user name or an address cannot become an option of ssh.
        self._options = [*(["-F", config] if config else []), *(["-p", str(port)] if port else [])]
        self._client = [*SSH, *self._options, *(["-l", username] if username else []), "--"]

    def client(self, machine: Machine) -> list[str]:
        return [*self._client, machine.address]

    def resolve(self, hellos: Sequence[Hello]) -> None:
        """Replace ``~`` in ``copy_to``."""
        copy_to = self.traits.copy_to
        homes = {hello.home for hello in hellos}
        if copy_to is not None and copy_to.startswith("~"):
            if len(homes) > 1:
                message = f"--copy_to {copy_to}: the machines have different homes, {' and '.join(sorted(homes))}"
                raise InputError(message, "Give an absolute path, the same on all machines.")
            self.traits = replace(self.traits, copy_to=homes.pop() + copy_to[1:])

    def remedy(self, machine: Machine, last_line: str) -> str:
        login = f"{self.username}@{machine.address}" if self.username else machine.address
        advice = next(text for pattern, text in REMEDIES.items() if re.search(pattern, last_line))
        names = {"user": self.username or getpass.getuser(), "address": machine.address, "python": self.python}
        return advice.format(login=shlex.join([*self._options, login]), port=self.port or 22, **names)

    def rsync_shell(self, machine: Machine) -> list[str]:  # noqa: ARG002
        return self._client


class SlurmBackend(ClientBackend):
    """The nodes of this allocation."""

    traits = replace(ClientBackend.traits, label="node {0.name}")

    def __init__(self, subnet: str | None = None) -> None:
        try:
            self.subnet = None if subnet is None else ipaddress.IPv4Network(subnet)
        except ValueError as error:
            raise InputError(f"--subnet {subnet}: {error}", "Write it like 10.1.0.0/16.") from None
        nodelist = os.environ.get("SLURM_JOB_NODELIST")
        if nodelist is None or shutil.which("scontrol") is None or shutil.which("srun") is None:
            remedy = "Allocate nodes first: salloc --nodes 2 --ntasks-per-node 1. Or write a script with submit."
            raise InputError("--slurm: this is not inside a Slurm allocation", remedy)
        command = ["scontrol", "show", "hostnames", nodelist]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise InputError(f"{shlex.join(command)}: {result.stderr.strip()}")
        self.machines = [Machine(node, "") for node in result.stdout.split()]

    def client(self, machine: Machine) -> list[str]:
        return [*SRUN, f"--nodelist={machine.name}", "sh", "-c"]

    def remedy(self, machine: Machine, last_line: str) -> str:  # noqa: ARG002
        return f"Try it by hand: srun --overlap -N1 -n1 -w {machine.name} {sys.executable} -c 'import tutorial_lib'"
