"""Machines that a client program reaches, ssh or srun."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tutorial_lib.errors import InputError, WaitedTooLong, attempts
from tutorial_lib.launcher.backends import KILLED_SECONDS, Traits, wait_or_kill
from tutorial_lib.launcher.jobspec import Machine


class RemoteBackend(ABC):
    """Computers that the client programs ssh or srun reach. Each command has a client, which ends with the context."""

    traits = Traits(shares_computer=False, private_shm=False, silence_seconds=30.0)  # pings come every 5 s
    master_port = 29500
    copy_to: str | None = None
    reach: dict[str, Any] | None = None

    def __init__(self, machines: Sequence[Machine], python: str = sys.executable) -> None:
        self.machines, self.python = list(machines), python
        self._started: list[subprocess.Popen] = []

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:  # noqa: ARG002
        """Part of being a ``Cluster``."""
        return None

    @abstractmethod
    def _client(self, machine: Machine, line: str) -> list[str]:
        """Return the command of the client, which runs ``line`` in a shell of the machine."""

    @abstractmethod
    def _remedy(self, machine: Machine, said: str) -> str:
        """Return a remedy for the message of the client, which is empty after a timeout."""

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine. The arguments are those of ``Popen``. ``env`` has additional variables only.

        If the working directory does not exist there, the command fails with a message. The default is ``/``, because
        Python imports from the folder in which it starts, and a home may contain a ``random.py``.
        """
        words = [self.python if str(word) == sys.executable else str(word) for word in argv]
        cwd, env = kwargs.pop("cwd", None), kwargs.pop("env", None) or {}
        changes = [f"{name}={value}" for name, value in env.items() if os.environ.get(name) != value]
        command = shlex.join(["exec", *(["env", *changes] if changes else []), *words])
        client = self._client(machine, f"cd {shlex.quote(str(cwd or '/'))} && {command}")
        kwargs.setdefault("stdin", subprocess.DEVNULL)  # the client would read the user's terminal
        # The coordinator handles Ctrl-C in the terminal. The signal must not end the connections.
        process = subprocess.Popen(client, start_new_session=True, **kwargs)
        self._started.append(process)
        return process

    def explain_end(self) -> str | None:
        """Return None, because the client programs report nothing about the end of a machine."""
        return None

    def _ask(self, argv: Sequence[str], places: Sequence[str], seconds: float) -> list[str]:
        """Run a program on all machines at the same time and return its output. Messages use the names ``places``.

        Raises:
            InputError: the message of the client, or a timeout.
        """
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        answers, output, errors = [], b"", b""
        try:
            asked = [self.popen(machine, argv, **pipes) for machine in self.machines]
            for machine, place, process in zip(self.machines, places, asked, strict=True):
                try:
                    for left in attempts(f"{place} to answer", seconds, pause=0):
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            output, errors = process.communicate(timeout=min(left, 0.5))
                            break
                except WaitedTooLong:
                    raise InputError(f"{place}: no answer within {seconds:g} s", self._remedy(machine, "")) from None
                if process.returncode != 0:
                    said = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
                    raise InputError(f"{place}: {said.splitlines()[-1]}", self._remedy(machine, said))
                answers.append(output.decode(errors="replace"))
        finally:
            self.__exit__()
        return answers

    def __exit__(self, *_exc: object) -> None:
        """End the clients that still run. The processes on the machines end because they lose their connection."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            wait_or_kill(process, KILLED_SECONDS)
        self._started = []
