"""Machines that a client program reaches, ssh or srun."""

import shlex
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from tutorial_lib.launcher.backends import KILLED_SECONDS, Backend, Traits, wait_or_kill
from tutorial_lib.launcher.jobspec import Machine


class RemoteBackend(Backend):
    """Computers that the client programs ssh or srun reach. Each command has a client, which ends with the context."""

    master_port = 29500

    def __init__(self, machines: Sequence[Machine], traits: Traits, python: str = sys.executable) -> None:
        self.machines, self.traits, self.python = list(machines), traits, python
        self._started: list[subprocess.Popen] = []

    @abstractmethod
    def _client(self, machine: Machine, line: str) -> list[str]:
        """Return the command of the client, which runs ``line`` in a shell of the machine."""

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command in the folder ``/``, because a home may contain a ``random.py`` that Python would import."""
        words = [self.python if str(word) == sys.executable else str(word) for word in argv]
        kwargs.setdefault("stdin", subprocess.DEVNULL)  # the client would read the user's terminal
        # The coordinator handles Ctrl-C in the terminal. The signal must not end the connections.
        line = f"cd / && exec {shlex.join(words)}"
        process = subprocess.Popen(self._client(machine, line), start_new_session=True, **kwargs)
        self._started.append(process)
        return process

    def __exit__(self, *_exc: object) -> None:
        """End the clients that still run. The processes on the machines end because they lose their connection."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            wait_or_kill(process, KILLED_SECONDS)
        self._started = []
