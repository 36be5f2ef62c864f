"""Machines reached over ssh, with the ssh client and the configuration of the user.

Each process on a machine has one connection, and an agent ends when its connection ends. If the network
fails silently, the client notices missing answers to keep-alives, and the agent notices missing pings.
"""

from __future__ import annotations

import getpass
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends.remote import RemoteBackend
from tutorial_lib.launcher.jobspec import Machine

CONNECT_SECONDS = 10
ANSWER_SECONDS = 3 * CONNECT_SECONDS
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
    """Machines reached over ssh. ``with SshBackend(read_ip_config(path)) as cluster: cluster.popen(...)``.

    Entering runs one shell command on each machine, so that an unreachable machine, a missing key or an unknown host
    key is reported before anything else starts. The answers also replace ``~`` in ``copy_to``.

    Args:
        machines: in the order of ip_config.txt.
        port, username: by default those of the user's ssh configuration.
        config: another configuration file for ssh.
        python: interpreter on the machines, which must have tutorial_lib.
        copy_to: folder on the machines, see ``Cluster``. The path may start with ``~``, the home of the login.

    Raises:
        InputError: a machine cannot be reached. The message is that of ssh, with a remedy.
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
        super().__init__(machines, python)
        self.port, self.username, self.config, self.copy_to = port, username, config, copy_to

    @property
    def reach(self) -> dict[str, Any]:
        """Part of being a ``Cluster``."""
        return {name: getattr(self, name) for name in ("port", "username", "config")}

    def __enter__(self) -> SshBackend:
        if shutil.which("ssh") is None:
            raise InputError("no ssh client on this computer", "Install one: sudo apt install openssh-client")
        places = [f"ssh to {machine.address}" for machine in self.machines]
        answers = self._ask(["sh", "-c", 'echo "$HOME"'], places, ANSWER_SECONDS)
        if self.copy_to is not None and self.copy_to.startswith("~"):
            homes = [answer.splitlines()[-1] for answer in answers]  # ~/.bashrc may print other lines before
            for machine, home in zip(self.machines, homes, strict=True):
                if home != homes[0] or not home.startswith("/"):
                    message = f"--copy_to {self.copy_to}: the home is {homes[0]} on {self.machines[0].name}"
                    remedy = "Give an absolute path, the same on all machines."
                    raise InputError(f"{message}, and {home} on {machine.name}", remedy)
            self.copy_to = homes[0] + self.copy_to[1:]
        return self

    def _remedy(self, machine: Machine, said: str) -> str:
        login = f"{self.username}@{machine.address}" if self.username else machine.address
        target = f"-p {self.port} {login}" if self.port else login
        if "Host key verification failed" in said or "known_hosts" in said:
            return f"Compare the key of the machine and accept it once by hand: ssh {target}"
        if "Permission denied" in said:
            user = self.username or getpass.getuser()
            remedy = f"Let {user} log in there without a password: ssh-keygen -t ed25519 (once), then "
            return f"{remedy}ssh-copy-id {target}. A key with a passphrase needs a running ssh-agent."
        if "refused" in said:
            return f"No ssh server listens on port {self.port or 22}: install openssh-server, or give its --ssh_port."
        if "timed out" in said or "No route" in said:
            return f"Is {machine.address} right, switched on, and not behind a firewall?"
        return f"Try it by hand: ssh {target} hostname"

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:  # noqa: ARG002
        """Part of being a ``Cluster``."""
        return self._words(), []

    def _client(self, machine: Machine, line: str) -> list[str]:
        # ~/.bashrc may print a text without an end of line. The echo ends this line.
        return [*self._words(), machine.address, f"echo; {line}"]

    def _words(self) -> list[str]:
        # With ``-l`` and ``--``, a user name or an address cannot become an option of ssh.
        options = ["-F", self.config] if self.config else []
        options += ["-p", str(self.port)] if self.port else []
        options += ["-l", self.username] if self.username else []
        return ["ssh", *(f"-o{name}={value}" for name, value in OPTIONS.items()), *options, "-T", "--"]
