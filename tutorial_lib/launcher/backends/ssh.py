"""Machines reached over ssh, with the ssh client and the configuration of the user.

Each process on a machine has one connection, and an agent ends when its connection ends. If the network fails
silently, the client notices missing answers to keep-alives, and the agent notices missing pings.
"""

import getpass
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends import Traits
from tutorial_lib.launcher.backends.remote import RemoteBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Hello

CONNECT_SECONDS = 10
TRAITS = Traits(
    shares_computer=False,
    private_shm=False,
    silence_seconds=30.0,  # pings come every 5 s
    answer_seconds=3 * CONNECT_SECONDS,
    place="ssh to {0.address}",
)
# ssh must not ask questions. Users decide which machines they trust, so ssh refuses unknown host keys.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": CONNECT_SECONDS,
    "ServerAliveInterval": 5,
    "ServerAliveCountMax": 4,
    "LogLevel": "ERROR",
    "ClearAllForwardings": "yes",
}


class SshBackend(RemoteBackend):
    """Machines reached over ssh. ``with SshBackend(read_ip_config(path)) as backend: backend.popen(...)``.

    Args:
        machines: in the order of ip_config.txt.
        port, username: by default those of the user's ssh configuration.
        config: another configuration file for ssh.
        python: interpreter on the machines, which must have tutorial_lib.
        copy_to: folder on the machines, see ``Traits``. The path may start with ``~``, the home of the login.
    """

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
        reach = {"port": port, "username": username, "config": config}
        super().__init__(machines, replace(TRAITS, copy_to=copy_to, reach=reach), python)
        self.port, self.username, self.config = port, username, config

    def __enter__(self) -> "SshBackend":
        if shutil.which("ssh") is None:
            raise InputError("no ssh client on this computer", "Install one: sudo apt install openssh-client")
        return self

    def resolve(self, hellos: Sequence[Hello]) -> None:
        """Replace ``~`` in ``copy_to``."""
        copy_to, home = self.traits.copy_to, hellos[0].home
        if copy_to is None or not copy_to.startswith("~"):
            return
        for machine, hello in zip(self.machines, hellos, strict=True):
            if hello.home != home:
                message = f"--copy_to {copy_to}: the home is {home} on {self.machines[0].name}"
                remedy = "Give an absolute path, the same on all machines."
                raise InputError(f"{message}, and {hello.home} on {machine.name}", remedy)
        self.traits = replace(self.traits, copy_to=home + copy_to[1:])

    def remedy(self, machine: Machine, last_words: str) -> str:
        login = f"{self.username}@{machine.address}" if self.username else machine.address
        target = f"-p {self.port} {login}" if self.port else login
        if "Host key verification failed" in last_words or "known_hosts" in last_words:
            return f"Compare the key of the machine and accept it once by hand: ssh {target}"
        if "Permission denied" in last_words:
            user = self.username or getpass.getuser()
            remedy = f"Let {user} log in there without a password: ssh-keygen -t ed25519 (once), then "
            return f"{remedy}ssh-copy-id {target}. A key with a passphrase needs a running ssh-agent."
        if "refused" in last_words:
            return f"No ssh server listens on port {self.port or 22}: install openssh-server, or give its --ssh_port."
        if "timed out" in last_words or "No route" in last_words:
            return f"Is {machine.address} right, switched on, and not behind a firewall?"
        return f"Try it by hand: ssh {target} {self.python} -c 'import tutorial_lib'"

    def rsync_shell(self, machine: Machine) -> list[str]:  # noqa: ARG002
        return self._words()

    def _client(self, machine: Machine, line: str) -> list[str]:
        # ~/.bashrc may print a text without an end of line. The echo ends this line.
        return [*self._words(), machine.address, f"echo; {line}"]

    def _words(self) -> list[str]:
        # With ``-l`` and ``--``, a user name or an address cannot become an option of ssh.
        options = ["-F", self.config] if self.config else []
        options += ["-p", str(self.port)] if self.port else []
        options += ["-l", self.username] if self.username else []
        return ["ssh", *(f"-o{name}={value}" for name, value in OPTIONS.items()), *options, "-T", "--"]
