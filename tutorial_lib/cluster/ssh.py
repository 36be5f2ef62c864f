"""Real machines: one ssh connection each, through the user's own ssh client and configuration.

The agent on the other side lives as long as the connection: its standard input ends when the connection does. A way
that is cut without a word is noticed by both ends: by the client's keep-alives here, by the missing pings there.
"""

from __future__ import annotations

import getpass
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutorial_lib.cluster.spec import Machine, RemoteCluster
from tutorial_lib.errors import InputError

CONNECT_SECONDS = 10
ANSWER_SECONDS = 3 * CONNECT_SECONDS
ALIVE_SECONDS, ALIVE_TRIES = 5, 4  # the client gives up a silent connection after 20 s
MARK = "tutorial_lib-asks"  # a login shell may print something first (~/.bashrc)

# Nothing may ask a question, and an unknown host key is refused: the user decides whom to trust, once, by hand.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": str(ALIVE_SECONDS),
    "ServerAliveCountMax": str(ALIVE_TRIES),
    "LogLevel": "ERROR",
    "ClearAllForwardings": "yes",
}


class SshCluster(RemoteCluster):
    """Machines reached over ssh. ``with SshCluster(read_ip_config(path)) as cluster: cluster.popen(...)``.

    On entering, every machine is asked for its host name and the login's home, all at once: a machine that cannot be
    reached, a missing key or an unknown host key is found before anything is started.

    Args:
        machines: in the order of ip_config.txt.
        port, username: None leaves both to the user's ssh configuration.
        config: configuration file of ssh instead of the user's own.
        python: interpreter on the machines; it must have tutorial_lib.
        copy_to: folder on the machines, of ``Cluster``; ``~`` is the login's home there.

    Raises:
        InputError: what ssh said, and what to do about it.
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
        self._copy_to = copy_to
        self.port, self.username, self.config = port, username, config
        self._homes: list[str] = []

    @property
    def copy_to(self) -> str | None:
        """Part of being a ``Cluster``."""
        return self._copy_to and self.folder(self._copy_to)

    @property
    def reach(self) -> dict[str, Any]:
        """Part of being a ``Cluster``."""
        return {name: getattr(self, name) for name in ("port", "username", "config")}

    def __enter__(self) -> SshCluster:
        if shutil.which("ssh") is None:
            raise InputError("no ssh client on this computer", "Install one: sudo apt install openssh-client")
        command = ["sh", "-c", f'echo {MARK}; hostname; echo "$HOME"']
        answers = self._ask(command, [f"ssh to {machine.address}" for machine in self.machines], ANSWER_SECONDS)
        names, self._homes = list[str](), list[str]()
        for machine, answer in zip(self.machines, answers, strict=True):
            _noise, _mark, text = answer.partition(f"\n{MARK}\n")
            name, home, *_ = [*text.splitlines(), "", ""]
            # Folders bear this name; what is no host name may be anything.
            names.append(name if re.fullmatch(r"\w[\w.-]*", name, re.ASCII) else machine.name)
            self._homes.append(home)
        if len(set(names)) < len(names):  # logs are named after the machine; two may have the same host name
            names = [f"{name}-{k}" for k, name in enumerate(names)]
        self.machines = [replace(m, name=name) for m, name in zip(self.machines, names, strict=True)]
        return self

    def folder(self, path: str) -> str:
        """A folder on the machines, ``~`` replaced by the login's home there.

        Raises:
            InputError: the homes differ from machine to machine; a job has one path for all.
        """
        if path != "~" and not path.startswith("~/"):
            return path
        home, first = self._homes[0], self.machines[0].name
        for machine, other in zip(self.machines, self._homes, strict=True):
            if other != home or not other.startswith("/"):
                message = f"{path}: the home of the login is {home!r} on {first}, {other!r} on {machine.name}"
                raise InputError(message, "Give an absolute path, the same on all machines.")
        return home + path[1:]

    def _remedy(self, machine: Machine, said: str) -> str:
        login = f"{self.username}@{machine.address}" if self.username else machine.address
        target = f"-p {self.port} {login}" if self.port else login
        if "Host key verification failed" in said or "known_hosts" in said:
            return f"Compare the machine's key and accept it once, by hand: ssh {target}"
        if "Permission denied" in said:
            return (
                f"Let {self.username or getpass.getuser()} log in there without a password: ssh-keygen -t ed25519 "
                f"(once), then ssh-copy-id {target}. A key with a passphrase needs a running ssh-agent."
            )
        if "refused" in said:
            port = f"port {self.port or 22}"
            return f"No ssh server listens on {port} there: install openssh-server, or give its --ssh_port."
        if "timed out" in said or "No route" in said:
            return f"Is {machine.address} right, switched on, and not behind a firewall?"
        return f"Try it by hand: ssh {target} hostname"

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:  # noqa: ARG002
        """Part of being a ``Cluster``."""
        return self._words(), []

    def _client(self, machine: Machine, line: str) -> list[str]:
        # What a login shell has printed (~/.bashrc), perhaps without an end of line, is then a line of its own.
        return [*self._words(), machine.address, f"echo; {line}"]

    def _words(self) -> list[str]:
        # As the value of -l, and after --, nothing that a file or an option says can become an option of ssh.
        options = ["-F", self.config] if self.config else []
        options += ["-p", str(self.port)] if self.port else []
        options += ["-l", self.username] if self.username else []
        return ["ssh", *(f"-o{name}={value}" for name, value in OPTIONS.items()), *options, "-T", "--"]
