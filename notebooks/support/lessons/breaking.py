"""Tools of lesson 11 to check wrong address files and to print the errors."""

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.errors import TutorialError
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.ip_config import check_private, read_ip_config
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.coordinator import Coordinator
from tutorial_lib.launcher.findings import PreflightFailed
from tutorial_lib.partition import Partition


def plain(text: str) -> str:
    """Return a message without folders."""
    return re.sub(r"/(?!dev/)[\w.-]+/\S*/(?=[^/\s]+)", ".../", text)


def failure_of(call: Callable[[], Any]) -> TutorialError:
    """Return the failure that a call raises.

    Raises:
        RuntimeError: the call did not fail.
    """
    try:
        call()
    except TutorialError as error:
        return error
    raise RuntimeError("no failure: the job succeeded")


def show(error: TutorialError) -> None:
    """Print an error before the start of a job, and its remedy."""
    print("not started:" if isinstance(error, PreflightFailed) else "refused:", plain(error.message))
    for line in plain(error.remedy).splitlines():
        print("   ", line)


def try_addresses(cluster: EmulatedBackend, partition: Partition, lines: Sequence[str]) -> None:
    """Check a job whose ``ip_config.txt`` has these lines. No process of the job is started.

    Raises:
        InputError: the file cannot be read. PreflightFailed: a check failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ip_config.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        machines = read_ip_config(path)
        check_private(machines)
        config = str(partition.config)
        job = DglJob(machines, [sys.executable], config, str(path), folder, folder, cluster.master_port)
        original_machines = cluster.machines
        cluster.machines = machines
        try:
            with Agents(cluster, Path(folder)) as agents:
                Coordinator(agents, job.to_spec()).check_machines()
        finally:
            cluster.machines = original_machines
