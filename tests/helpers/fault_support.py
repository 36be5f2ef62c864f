"""Jobs in which tests inject faults, and the table of docs/faults.md."""

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import wait_until

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import Backend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.coordinator import Coordinator, MachineUse
from tutorial_lib.launcher.findings import Findings
from tutorial_lib.launcher.jobspec import Limits, Machine
from tutorial_lib.launcher.watch import registered_processes
from tutorial_lib.partition import Partition

# What faulthandler writes for a rank that waits in all_reduce.
DUMP = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 1997 in all_reduce
  File "/home/me/train.py", line 33 in main
  File "/home/me/train.py", line 80 in <module>
"""

FAULTY = Path(__file__).parents[1] / "programs" / "faulty_trainer.py"
CLEAN_EXIT_SECONDS = 60  # a limit against hangs, not a measurement: the default --stall-timeout is 120
SILENT_NETWORK_SECONDS = 100


def make_job(cluster: Backend, partition: Partition, folder: Path, *arguments: str, **fields: Any) -> DglJob:
    """Return a job of ``faulty_trainer.py`` with logs in ``folder/logs``."""
    write_ip_config(folder / "ip_config.txt", cluster.machines)
    defaults = {
        "machines": cluster.machines,
        "command": [sys.executable, str(FAULTY), partition.graph_name, *arguments],
        "part_config": str(partition.config),
        "ip_config": str(folder / "ip_config.txt"),
        "log_dir": str(folder / "logs"),
        "cwd": str(folder),
        "master_port": cluster.master_port,
        "forks": "command" not in fields,
    }
    return DglJob(**{**defaults, **fields})


def register_process(folder: Path, pid: int, role: str, index: int = 0) -> None:
    """Write the file with which the hook registers a process."""
    (folder / ".processes").mkdir(exist_ok=True)
    (folder / ".processes" / f"{role}-{index}-{pid}").touch()


class JobRun:
    """A job with its agents, as in ``train``. Without ``check``, it also starts if a check of a machine fails."""

    def __init__(self, cluster: Backend, plan: DglJob, *arguments: Any, check: bool = True, **options: Any) -> None:
        self.agents, self.check = Agents(cluster, Path(plan.log_dir), print), check
        self.coordinator = Coordinator(self.agents, plan.to_spec(), *arguments, **options)
        self.events, self.usage = self.coordinator.events, self.coordinator.usage

    def run_job(self) -> dict[str, MachineUse]:
        with self.agents:
            if not self.check:
                self.coordinator.check_machines = lambda: self.agents.prepare(self.coordinator.spec)  # type: ignore
            return self.coordinator.run_job()


def run_checks(cluster: Backend, plan: DglJob) -> Findings:
    """Return the findings of the checks before a job, without starting the job."""
    with tempfile.TemporaryDirectory() as logs, Agents(cluster, Path(logs)) as agents:
        return agents.prepare(plan.to_spec())


def run_program(partition: Partition, folder: Path, *command: str) -> list[dict]:
    """Run a Python program as trainers on emulated machines, and return the events of the job."""
    with EmulatedBackend(partition.report.parts) as cluster:
        job = JobRun(cluster, make_job(cluster, partition, folder, command=[sys.executable, *command], forks=True))
        job.run_job()
    return job.events


class RunningJob:
    """A job whose coordinator runs in a thread."""

    def __init__(self, cluster: Backend, plan: DglJob, limits: Limits = Limits()) -> None:
        self.cluster, self.plan = cluster, plan
        self.events: list[dict] = []
        self.job_run = JobRun(cluster, plan, self.events.append, limits)
        self.start_fault_clock()
        self.job = ThreadPoolExecutor(1).submit(self._run)

    def _run(self) -> tuple[BaseException | None, float]:
        try:
            self.job_run.run_job()
        except BaseException as error:
            return error, time.monotonic()
        return None, time.monotonic()

    def wait_for(self, kind: str, count: int, seconds: float = 60) -> None:
        """Wait for ``count`` events of a kind."""

        def has_events() -> bool:
            assert not self.job.done(), f"the job ended early: {self.job.result()}"
            return sum(event["kind"] == kind for event in list(self.events)) >= count

        wait_until(has_events, f"{count} {kind} event(s)", seconds)

    def signal(self, machine: Machine, role: str, number: signal.Signals, index: int = 0) -> None:
        """Send a signal to one process and start the clock of the fault."""
        found = registered_processes(Path(self.plan.log_dir) / machine.name)
        pid = next(member.pid for member in found if (member.role, member.local_index) == (role, index))
        self.start_fault_clock()
        assert self.cluster.popen(machine, ["kill", f"-{int(number)}", str(pid)]).wait(timeout=10) == 0

    def start_fault_clock(self) -> None:
        self.fault_at = time.monotonic()

    def end(self, seconds: float = 120) -> tuple[BaseException | None, float]:
        """Wait for the end. Return the failure (None if the job succeeded) and the seconds since the fault."""
        error, ended_at = self.job.result(timeout=seconds)
        return error, ended_at - self.fault_at


@pytest.fixture
def record_fault(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``record_fault(fault, message, seconds)`` adds a row to the table in docs/faults.md."""

    def record(fault: str, message: object, seconds: float | str | None) -> None:
        first = re.sub(r"/\S*/(?=[^/\s]+)", ".../", str(message).splitlines()[0])  # without the folders of this run
        if seconds is None:
            seconds = "goes on" if first.startswith("none:") else "before the start"
        row = (fault, first, seconds if isinstance(seconds, str) else f"{seconds:.1f} s")
        request.node.user_properties.append(("fault", row))  # pytest-xdist sends it to the main process

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the faults of this run, with the seconds from fault to exit, to the page in ``FAULT_TABLE``."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    called = [report for report in reports if getattr(report, "when", None) == "call"]
    noted = [row for report in called for name, row in report.user_properties if name == "fault"]
    if noted and (path := os.environ.get("FAULT_TABLE")):
        rows = "".join(f"| {f} | `{m.replace('|', '/')}` | {s} |\n" for f, m, s in dict.fromkeys(noted))
        heading = "| fault | first line of the report | seconds to exit |\n|---|---|---|\n"
        replace_table(Path(path), "make fault-table", heading + rows)


def replace_table(path: Path, command: str, text: str) -> None:
    """Replace the text between the two marks of a command in a page."""
    begin, end = f"<!-- written by {command} -->\n", f"<!-- end of {command} -->\n"
    head, rest = path.read_text().split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
