"""Real agents with simple commands: messages, shutdown, remaining files and imported modules."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from commands import wait_until
from fault_support import JobRun, run_checks

from tutorial_lib.job.dgl import SHM_PATTERNS, DglJob
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.messages import Command, StartRole
from tutorial_lib.launcher.shm import lock_shm

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
SLEEP = ["sleep", "1000"]


def job_in(folder: Path, cluster, *command: str, **fields) -> DglJob:
    """Return the plan of a job whose servers are any command and whose trainers never start."""
    paths = {"part_config": "none.json", "ip_config": str(folder / "ip_config.txt"), "log_dir": str(folder / "logs")}
    options = {**paths, "cwd": str(folder), "master_port": cluster.master_port, **fields}
    return DglJob(cluster.machines, list(command), **options)


@pytest.fixture
def stopped_agent(tmp_path):
    """A stopped agent with a server, and the messages of the processes that wait for it."""
    printed: list[str] = []
    with LocalBackend() as cluster:
        plan = job_in(tmp_path, cluster, *SLEEP)
        with Agents(cluster, tmp_path / "logs", printed.append) as agents:
            agents.prepare(plan.to_spec())
            agents.send_all(StartRole("server"))
            wait_until((tmp_path / "logs" / "machine-0" / "server-0.log").exists, "the server")
            agents.processes[0].send_signal(signal.SIGSTOP)
            printed.clear()
            yield agents, printed
        agents.clean_up({0}, SHM_PATTERNS)


def test_agent_that_does_not_read_blocks_no_other(stopped_agent):
    agents, printed = stopped_agent
    start = time.monotonic()
    for _ in range(20_000):  # a pipe takes 64 KB
        agents.send_all(Command("ping"))
    assert time.monotonic() - start < 60
    agents.stop(2.5, lambda *_: None)
    assert time.monotonic() - start < 60
    assert agents.processes[0].returncode == -signal.SIGKILL
    assert printed == ["waiting for the agents to stop their processes (for at most 2.5 s)"]


def test_ctrl_c_kills_stopped_agent_at_once(stopped_agent):
    """L4. After a real signal, the agent and its processes end immediately."""
    agents, _ = stopped_agent
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            agents.stop(600, lambda *_: None)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 60
    assert agents.processes[0].returncode == -signal.SIGKILL


def test_second_job_on_same_shm_is_refused(tmp_path):
    """L34. The error names the process that uses it, for example of another container."""
    pattern = rf"^agent on machine-0: waited .* for process {os.getpid()} \(.*writing to /dev/shm$"
    with lock_shm(SHM_PATTERNS), LocalBackend() as cluster:
        plan = job_in(tmp_path, cluster, *SLEEP, part_config="")
        (finding,) = run_checks(cluster, plan).failed
        with pytest.raises(JobFailed, match=pattern):
            JobRun(cluster, plan, check=False).run_job()
    assert finding.sentence.startswith("machine-0: leftovers: another job is running on this machine")


def test_workspace_files_do_not_shadow_standard_library(tmp_path):
    """L29. The agent, its checks and the ranks import Python's own modules."""
    for name in ("copy", "random", "json", "queue", "socket", "runpy", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the one of Python')\n")
    (tmp_path / "below").mkdir()
    script = "import copy, json, os, sys; print(sys.argv[1], copy.copy('copied')); "
    script += "print(json.dumps(sorted(os.environ)))"
    (tmp_path / "below" / "train.py").write_text(script)
    with LocalBackend() as cluster:
        plan = job_in(tmp_path, cluster, sys.executable, "below/train.py", "argument", part_config="", trainers=2)
        JobRun(cluster, plan).run_job()
        log = (tmp_path / "logs" / "machine-0" / "trainer-1.log").read_text()
    assert log.startswith("argument copied\n[")
    names = json.loads(log.splitlines()[1])
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(names)
    assert not [name for name in names if name.startswith("DGL_")]
