"""Lessons of level 3: emulated machines, or one clear message where this computer does not allow them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.spec import Machine, write_ip_config
from tutorial_lib.partition import Partition

ASK_SECONDS = 120.0


class StopHere(Exception):
    """Ends "Run All" with a message and without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def start_machines(count: int) -> EmulatedCluster:
    """Emulated machines that run until they are left with ``__exit__``, or until this process ends.

    Raises:
        StopHere: the host does not allow them; the message says what is forbidden and what to change.
    """
    try:
        return EmulatedCluster(count).__enter__()
    except EmulationUnavailable as error:
        raise StopHere(f"This lesson cannot run here: {error.message}\n{error.remedy}") from None


def require_machines() -> None:
    """Switch an emulated machine on and off again.

    Raises:
        StopHere: as ``start_machines``.
    """
    start_machines(1).__exit__()


def ask(cluster: EmulatedCluster, machines: Sequence[Machine], command: Sequence[str], **options: Any) -> list[str]:
    """What a command prints on each of some machines, on all at once; options as of ``popen``."""
    asked = [cluster.popen(machine, command, stdout=subprocess.PIPE, text=True, **options) for machine in machines]
    return [process.communicate(timeout=ASK_SECONDS)[0] for process in asked]


def plan_in(
    folder: Path, machines: Sequence[Machine], partition: Partition, command: Sequence[str], **more: Any
) -> JobPlan:
    """The plan of a job whose address file and logs are in ``folder``; more fields of a ``JobPlan`` at will."""
    write_ip_config(folder / "ip_config.txt", machines)
    fixed = {"part_config": str(partition.config), "ip_config": str(folder / "ip_config.txt"), "cwd": str(folder)}
    return JobPlan(machines=machines, command=command, **{**fixed, "log_dir": str(folder / "logs"), **more})
