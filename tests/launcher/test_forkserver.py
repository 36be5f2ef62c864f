"""Servers and trainers that are forked by one process behave like processes that the agent has started."""

import json
import os
import sys
from pathlib import Path

import psutil
import pytest
from commands import wait_until
from fault_support import RunningJob, make_job

from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.partition import Partition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]

# Import like a program of a job, and report the process. A server listens until the trainers have ended.
TELLS = """
import json, os, socket, time
from pathlib import Path
import torch, dgl, tutorial_lib.tasks.run
from tutorial_lib.trainer.session import fork_on_request
before = os.getpid()
others = sorted(Path(f"/proc/self/task/{t}/comm").read_text().strip() for t in os.listdir("/proc/self/task"))
fork_on_request()
role, k = os.environ["DGL_ROLE"], int(os.environ.get("LOCAL_RANK", os.environ.get("TUTORIAL_INDEX", 0)))
names = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "DGL_SERVER_ID", "TUTORIAL_FORKSERVER"]
print(f"I am {role} {k}", flush=True)
Path(f"{role}-{k}.part").write_text(json.dumps({
    "pid": os.getpid(), "forked_by": before, "parent": os.getppid(), "session": os.getsid(0), "threads": others,
    "torch_threads": torch.get_num_threads(), "env": {name: os.environ.get(name) for name in names},
}))
Path(f"{role}-{k}.part").rename(f"{role}-{k}.json")
if role == "server":
    address, port = open(os.environ["DGL_IP_CONFIG"]).read().split()
    listener = socket.create_server((address, int(port) + int(os.environ["DGL_SERVER_ID"])))
time.sleep(1000)
"""


def start_program(cluster: LocalBackend, partition: Partition, folder: Path, text: str) -> RunningJob:
    """Start a program as a job with two servers and two trainers."""
    (folder / "program.py").write_text(text)
    more = {"trainers": 2, "servers": 2, "omp_threads": 2, "server_threads": 1, "forks": True}
    command = [sys.executable, str(folder / "program.py")]
    return RunningJob(cluster, make_job(cluster, partition, folder, command=command, **more))


def read_reports(folder: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*-?.json")}


def test_forked_processes_are_children_of_the_agent(partition_of, tmp_path):
    """L6, L13. Each is a child of the agent, and dies with it. No thread of OpenMP or DGL was there at the fork."""
    with LocalBackend(servers=2) as cluster:
        job = start_program(cluster, partition_of(1), tmp_path, TELLS)
        names = ["client-0", "client-1", "server-0", "server-1"]
        wait_until(lambda: sorted(read_reports(tmp_path)) == names, "four processes", 60)
        found = read_reports(tmp_path)
        (agent,) = {entry["parent"] for entry in found.values()}
        assert psutil.Process(agent).ppid() == os.getpid()
        assert len({entry["forked_by"] for entry in found.values()}) == 1
        pids = {entry["pid"] for entry in found.values()}
        children = psutil.Process(agent).children
        wait_until(lambda: {child.pid for child in children(recursive=True)} == pids, "the end of the forkserver", 10)
        psutil.Process(agent).kill()
        error, _ = job.end()
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of all", 10)
    assert str(error).startswith("agent on machine-0: the agent ended unexpectedly (killed by signal 9 (SIGKILL))")
    assert "emulated" not in str(error)
    for name, entry in found.items():
        assert entry["session"] == entry["pid"]
        assert entry["env"]["TUTORIAL_FORKSERVER"] is None
        assert set(entry["threads"]) <= {"python", "jemalloc_bg_thd"}  # OpenBLAS names its thread like the process
        threads = 1 if name.startswith("server") else 2
        assert (entry["env"]["OMP_NUM_THREADS"], entry["torch_threads"]) == (str(threads), threads)
    assert [found[name]["env"]["RANK"] for name in names] == ["0", "1", None, None]
    assert [found[name]["env"]["DGL_SERVER_ID"] for name in names] == [None, None, "0", "1"]
    assert "I am client 1" in (tmp_path / "logs" / "machine-0" / "trainer-1.log").read_text()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (exit code 1)"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9 (SIGKILL)"),
    ],
)
def test_forkserver_ends_before_the_first_fork(text, cause, partition_of, tmp_path, record_fault):
    with LocalBackend(servers=2) as cluster:
        error, seconds = start_program(cluster, partition_of(1), tmp_path, text).end()
    assert str(error) == f"forkserver on machine-0: {cause}"
    assert seconds < 60
    if "SIGKILL" in cause:
        record_fault("SIGKILL to the process that imports for a machine", error, seconds)
