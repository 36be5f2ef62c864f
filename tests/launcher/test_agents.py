"""Real agents without a real job: their messages, their end, what they leave, and who can hide a module from them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import wait_until
from fault_support import CLEAN_EXIT_SECONDS, JobRun, coordinator_of, examine

from tutorial_lib.job.dgl import SHM_PATTERNS, JobPlan
from tutorial_lib.job.ip_config import write_ip_config
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.jobspec import Limits
from tutorial_lib.launcher.messages import Command, StartRole
from tutorial_lib.launcher.shm import job_files

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
SLEEP = ["sleep", "1000"]


def plan_in(folder: Path, cluster, *command: str, **fields) -> JobPlan:
    """A job whose servers are any command; no trainer is ever started."""
    write_ip_config(folder / "ip_config.txt", cluster.machines)
    paths = {"part_config": "none.json", "ip_config": str(folder / "ip_config.txt"), "log_dir": str(folder / "logs")}
    return JobPlan(
        **{
            "machines": cluster.machines,
            "command": list(command),
            "cwd": str(folder),
            "master_port": cluster.master_port,
            **paths,
            **fields,
        }
    )


def fail(cluster, plan: JobPlan, **options) -> tuple[JobFailed, JobRun]:
    coordinator = coordinator_of(cluster, plan, check=False, **options)
    with pytest.raises(JobFailed) as caught:
        coordinator.run_job()
    return caught.value, coordinator


def test_segments_of_a_killed_server_are_removed(tmp_path):
    code = "import os; open('/dev/shm/node~_N~feat-kvdata-', 'w').write('x'); os.kill(os.getpid(), 9)"
    with LocalBackend() as cluster:
        error, _ = fail(cluster, plan_in(tmp_path, cluster, sys.executable, "-c", code))
        assert str(error) == "server 0 on machine-0: killed by signal 9 (SIGKILL)"
        assert job_files(SHM_PATTERNS) == []


def test_traffic_before_the_job_is_not_counted(emulation, tmp_path):
    sender = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); [s.sendto(b'x' * 1000, ('10.77.0.2', 9)) "
        "for _ in range(3000)]; import psutil; print(psutil.net_io_counters(True)['eth0'].bytes_sent)"
    )
    with EmulatedBackend(2) as cluster:
        command = [sys.executable, "-c", sender]
        sent = cluster.popen(cluster.machines[0], command, stdout=subprocess.PIPE).communicate(timeout=20)[0]
        assert int(sent) > 2_000_000
        _, coordinator = fail(cluster, plan_in(tmp_path, cluster, "true"))
    assert coordinator.use["machine-0"].bytes_sent < 1_000_000


@pytest.fixture
def stopped_agent(tmp_path):
    """An agent with a server, stopped in the middle of its work, and what those who wait for it have said."""
    said: list[str] = []
    with LocalBackend() as cluster:
        plan = plan_in(tmp_path, cluster, *SLEEP)
        with Agents(cluster, tmp_path / "logs", said.append) as agents:
            agents.prepare(plan.to_spec())
            agents.send_all(StartRole("server"))
            wait_until((tmp_path / "logs" / "machine-0" / "server-0.log").exists, "the server")
            agents.processes[0].send_signal(signal.SIGSTOP)
            said.clear()
            yield agents, said
        agents.clean_up({0}, SHM_PATTERNS)


def test_an_agent_that_does_not_read_holds_up_nobody(stopped_agent):
    agents, said = stopped_agent
    start = time.monotonic()
    for _ in range(20_000):  # a pipe takes 64 KB
        agents.send_all(Command("ping"))
    assert time.monotonic() - start < 60
    agents.stop(2.5, lambda *_: None)
    assert time.monotonic() - start < 60
    assert agents.processes[0].returncode == -signal.SIGKILL
    assert said == ["waiting for the agents to stop what they started (for at most 2.5 s)"]


def test_ctrl_c_while_a_stopped_agent_is_waited_for(stopped_agent):
    """L4. Raised by a real signal; the agent and what it started are gone at once."""
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


def test_a_run_folder_that_vanishes_is_named(tmp_path):
    run = tmp_path / "run"

    def on_event(event: dict) -> None:
        if event.get("stage") == "servers":
            wait_until((run / "logs" / "machine-0" / "server-0.log").exists, "the server")
            subprocess.run(["rm", "-r", str(run)], check=True)

    with LocalBackend() as cluster:
        start = time.monotonic()
        plan = plan_in(tmp_path, cluster, *SLEEP, log_dir=str(run / "logs"))
        error, _ = fail(cluster, plan, on_event=on_event)
    assert f"run folder {run} has vanished" in str(error)
    assert time.monotonic() - start < CLEAN_EXIT_SECONDS


def test_a_program_that_writes_a_gigabyte_is_named_by_its_end(tmp_path):
    """Its machine's agent goes on saying that it lives, and needs no more memory than before."""
    code = "import os, sys; [os.write(1, b'x' * (1 << 20)) for _ in range(300)]; sys.exit(3)"
    with LocalBackend() as cluster:
        start = time.monotonic()
        plan = plan_in(tmp_path, cluster, sys.executable, "-c", code)
        error, _ = fail(cluster, plan, limits=Limits(silence=6))
    assert str(error) == "server 0 on machine-0: exit code 3"
    assert len(error.tail) == 1
    assert len(error.tail[0]) < 1100
    assert time.monotonic() - start < CLEAN_EXIT_SECONDS


HIDING = ("copy", "random", "json", "queue", "socket", "runpy", "selectors")


@pytest.fixture
def workspace(tmp_path) -> Path:
    """A folder whose files have names of Python's own modules."""
    for name in HIDING:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the one of Python')\n")
    return tmp_path


def test_agents_and_checks_work_in_such_a_workspace(workspace):
    (workspace / "program.py").write_text("import sys; sys.exit(3)\n")
    with LocalBackend() as cluster:
        plan = plan_in(workspace, cluster, *SLEEP)
        assert {f.check for f in examine(cluster, plan) if f.status == "fail"} == {"partition"}
        command = ["env", "-u", "PYTHONPATH", sys.executable, "-I", str(workspace / "program.py")]
        error, _ = fail(cluster, plan_in(workspace, cluster, *command))
        assert str(error) == "server 0 on machine-0: exit code 3"


def test_ranks_start_in_such_a_workspace(workspace):
    """L29. The job has no DGL servers, so its only role is started at once."""
    (workspace / "below").mkdir()
    script = (
        "import copy, json, os, sys; print(sys.argv[1], copy.copy('copied')); print(json.dumps(sorted(os.environ)))"
    )
    (workspace / "below" / "train.py").write_text(script)
    with LocalBackend() as cluster:
        command = [sys.executable, "below/train.py", "argument"]
        plan = plan_in(workspace, cluster, *command, part_config="", trainers=2)
        coordinator_of(cluster, plan).run_job()
        log = (workspace / "logs" / "machine-0" / "trainer-1.log").read_text()
    assert log.startswith("argument copied\n[")
    names = json.loads(log.splitlines()[1])
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(names)
    assert not [name for name in names if name.startswith("DGL_")]
