"""Backends, the places where a job runs: this computer, emulated machines, machines over ssh, and nodes of Slurm."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tutorial_lib.launcher.jobspec import Machine

SSH_FAILED = 255  # exit code of the ssh client for its own failures
KILLED_SECONDS = 5.0


@dataclass(frozen=True)
class Traits:
    """Properties of a backend that the launcher takes into account.

    Attributes:
        shares_computer: the machines share the processors and the memory of this computer.
        private_shm: /dev/shm of a machine disappears with the machine after the job.
        silence_seconds: an agent stops if it hears nothing from the coordinator for this time. None if the connection
            is a pipe on this computer, which reports the end of the coordinator at once.
    """

    shares_computer: bool
    private_shm: bool
    silence_seconds: float | None = None


class Backend(contextlib.AbstractContextManager["Backend"], Protocol):
    """Machines, and a way to start a process on each. Leaving the context ends all processes that it started."""

    traits: Traits
    machines: list[Machine]
    master_port: int  # where the trainers' process group meets, on the first machine

    @property
    def copy_to(self) -> str | None:
        """Folder on the machines for copies and results, or None if the machines share the folders of this computer.

        The cluster must have been entered.
        """
        ...

    @property
    def reach(self) -> dict[str, Any] | None:
        """Options with which a later command reaches the machines, see ``remote_files.Delivery``, or None."""
        ...

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:
        """Return the remote shell for ``rsync -e`` and its open files, or None if the machines share our folders."""
        ...

    def popen(self, machine: Machine, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen:
        """Start a command on a machine. The arguments are those of ``subprocess.Popen``."""
        ...

    def explain_end(self) -> str | None:
        """Return why the machines have ended during a job, or None if they have not or the reason is unknown."""
        ...


class BackendDefaults:
    """The members of a backend whose machines have known addresses and share the folders of this computer."""

    copy_to: str | None = None
    reach: dict[str, Any] | None = None

    def resolve(self, hellos: Sequence[Any]) -> None:
        """Do nothing, because the addresses are known from the start."""

    def remedy(self, machine: Machine, last_words: str) -> str:  # noqa: ARG002
        """Return an empty string, because a process on this computer needs no login."""
        return ""

    def rsync_shell(self, machine: Machine) -> tuple[list[str], list[int]] | None:  # noqa: ARG002
        """Return None, because the machines share the folders of this computer."""
        return None

    def explain_end(self) -> str | None:
        """Return None, because the machines end with the job."""
        return None

    def __exit__(self, *_exc: object) -> None:
        """Do nothing. The processes end with their agent."""


def wait_or_kill(process: subprocess.Popen, seconds: float) -> None:
    """Wait for a process to end, and then kill it. A process that hangs in the kernel is abandoned after 5 s."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=KILLED_SECONDS)
