"""Tests of ``job.sbatch``. Small replacements for Slurm's commands record their calls (see ``slurm_commands.py``).

If lesson 16 has started machines with Slurm, the last test submits the script to them.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_commands

SCRIPT = next(path for folder in sys.path if (path := Path(folder, "job.sbatch")).exists())
FILES = Path("scripts/out/16")


def wait_until(condition, seconds=15):
    """Wait until the condition is true, or the time is over."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


class Job:
    """The script as job 7 on three nodes, with two trainers on each."""

    def __init__(self, folder, fail=()):
        self.folder, self.commands = folder, folder / "commands"
        self.commands.mkdir()
        (folder / FILES).mkdir(parents=True)
        slurm_commands.install(self.commands)
        (self.commands / "plan").write_text(json.dumps({"fail": fail}))

    def start(self, nodes="node-[3-5]", restarts=0):
        slurm = {"JOB_ID": 7, "JOB_NODELIST": nodes, "JOB_NUM_NODES": 3, "NNODES": 3, "NTASKS": 6, "NPROCS": 6}
        slurm |= {"NTASKS_PER_NODE": 2, "NODELIST": nodes, "RESTART_COUNT": restarts}
        slurm |= {"PROCID": 0, "LOCALID": 0, "NODEID": 0}  # of the script itself
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("DGL_", "OMP_"))}
        env = {**keep, **{f"SLURM_{name}": str(value) for name, value in slurm.items()}}
        env |= {"SLURM_COMMANDS": str(self.commands), "PATH": f"{self.commands}:{os.environ['PATH']}"}
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        command = ["bash", str(SCRIPT), "--num_epochs", "5"]
        for file in self.commands.glob("running-*"):
            file.unlink()
        self.process = subprocess.Popen(command, cwd=self.folder, env=env, **options)
        (self.commands / "calls").touch()
        wait_until(lambda: self.running() == 9 or self.process.poll() is not None or self.waits(), 60)
        return self

    def waits(self):
        """Return whether no command has been called for 5 seconds, because the script or a step waits."""
        return time.time() - (self.commands / "calls").stat().st_mtime > 5

    def running(self):
        return len(list(self.commands.glob("running-*")))

    def end(self, seconds=15):
        """Return the exit code, or None if the script still runs after some seconds."""
        wait_until(lambda: self.process.poll() is not None, seconds)
        return self.process.poll()

    def trainers_end(self):
        (self.commands / "trainers-end").touch()

    def calls(self, start):
        """Return the arguments and the variables of the recorded calls whose name starts with ``start``."""
        lines = [json.loads(line) for line in (self.commands / "calls").read_text().splitlines()]
        return [(words, env) for name, words, env in lines if name.startswith(start)]

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def job(request, tmp_path):
    job = Job(tmp_path, getattr(request, "param", ()))
    yield job
    if job.process.poll() is None:
        job.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A job whose servers and trainers run until the end of the tests."""
    job = Job(tmp_path_factory.mktemp("job")).start()
    yield job
    job.kill()


def options_of(script):
    """Return the options of a batch script as ``sbatch`` reads them, which stops at the first command."""
    found = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        for word in shlex.split(line.removeprefix("#SBATCH"), comments=True) if line.startswith("#SBATCH") else []:
            name, _, value = word.partition("=")
            found[name] = value
    return found


def test_options():
    """Write each option as --NAME=VALUE before the first command. %j is the job ID. B: means the script only."""
    got = options_of(SCRIPT.read_text())
    expected = {"--partition": "main", "--nodes": "2", "--ntasks-per-node": "1", "--exclusive": "", "--time": "10"}
    expected |= {"--output": "scripts/out/16/%j.log", "--open-mode": "append", "--requeue": ""}
    expected |= {"--signal": "B:USR1@60"}
    got.pop("--job-name", None)
    got["--time"] = {"10:00": "10", "00:10:00": "10", "0:10:00": "10"}.get(got.get("--time"), got.get("--time"))
    assert got == expected


def test_addresses(job):
    """Write a line for each node, in the order of the allocation. Use > after the loop, which replaces the file."""
    for restarts, nodes in enumerate(("node-[3-5]", "node-[7-9]")):
        job.start(nodes, restarts)
        job.kill()
        got = (job.folder / FILES / "7.txt").read_text()
        expected = "".join(f"10.1.0.{node} 30050\n" for node in ((3, 4, 5), (7, 8, 9))[restarts])
        assert got == expected


COMMON = {
    "DGL_DIST_MODE": "distributed",
    "DGL_GRAPH_FORMAT": "csc",
    "DGL_IP_CONFIG": "scripts/out/16/7.txt",
    "DGL_CONF_PATH": "scripts/out/16/parts-3/synthetic-products.json",
    "DGL_NUM_SERVER": "1",
    "DGL_NUM_SAMPLER": "0",
    "DGL_NUM_CLIENT": "6",
    "OMP_NUM_THREADS": "1",
    "DGLBACKEND": "pytorch",
    "PYTHONUNBUFFERED": "1",
}


def compare(job, name, expected):
    """Return the variables of a process that differ, and their expected values."""
    found = job.calls(name)
    if len(found) != 1:
        return f"{len(found)} processes {name}", "1 process"
    differ = {key for key, value in expected.items() if found[0][1].get(key) != value}
    return {key: found[0][1].get(key) for key in sorted(differ)}, {key: expected[key] for key in sorted(differ)}


def test_variables_of_servers(running):
    """Task k of the step is server k on node k. ``bash -c`` reads SLURM_PROCID in the task if you write \\$."""
    for number in range(3):
        variables = {**COMMON, "DGL_ROLE": "server", "DGL_SERVER_ID": str(number), "SLURM_NODEID": str(number)}
        got, expected = compare(running, f"server {number}", variables)
        assert got == expected


def test_variables_of_trainers(running):
    """Each of the six trainers has a rank in the job and a rank on its node, and all have the address of rank 0."""
    ranks = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.1.0.3", "MASTER_PORT": "29500"}
    for rank in range(6):
        variables = {**COMMON, **ranks, "DGL_ROLE": "client", "RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
        got, expected = compare(running, f"client {rank}", variables)
        assert got == expected


def test_arguments(running):
    """Servers and trainers run $program, which contains the arguments of the script."""
    for role in ("server 0", "client 5"):
        got = [words[-2:] for words, _ in running.calls(role)]
        expected = [["--num_epochs", "5"]]
        assert got == expected


def test_steps_overlap(running):
    """Start both steps with --overlap and &. Otherwise the trainers wait for the servers and the servers for them."""
    got, expected = running.running(), 9  # three servers and six trainers at the same time
    assert got == expected


def requeued(job):
    return [words for words, _ in job.calls("scontrol") if words[0] == "requeue"]


def test_success(job):
    """When all processes have ended without an error, the script ends with exit code 0 and requeues nothing."""
    job.start().trainers_end()
    got, expected = (job.running(), job.end(), requeued(job)), (9, 0, [])
    assert got == expected


@pytest.mark.parametrize("job", [["client 1"], ["server 2"]], indirect=True, ids=["trainer", "server"])
def test_failure(job):
    """If a process fails, the other step must end, too. The exit code of the script must not be 0."""
    job.start()
    got, expected = job.end() not in (None, 0), True
    assert got == expected


def test_signal(job):
    """After USR1, wait for a new checkpoint, then send TERM to all tasks with scancel, then requeue the job once."""
    job.start()
    os.kill(job.process.pid, signal.SIGUSR1)
    notice = job.folder / FILES / "7.notice"
    wait_until(notice.exists)
    time.sleep(0.4)
    before = len(job.calls("TERM")), requeued(job), job.process.poll()
    (job.commands / "save").touch()
    job.end()
    got = before, len(job.calls("TERM")), requeued(job), job.running()
    expected = (0, [], None), 9, [["requeue", "7"]], 9
    assert got == expected


def test_signal_with_an_old_checkpoint(job):
    """A checkpoint from before the signal does not contain the current epoch, so it does not count."""
    job.start()
    (job.folder / FILES / "7.pt").touch()
    time.sleep(0.02)
    os.kill(job.process.pid, signal.SIGUSR1)
    wait_until((job.folder / FILES / "7.notice").exists)
    time.sleep(0.4)
    got, expected = (len(job.calls("TERM")), requeued(job)), (0, [])
    assert got == expected


def test_signal_at_the_end(job):
    """If the trainers end after the signal, the script ends with their exit code and does not requeue the job."""
    job.start()
    os.kill(job.process.pid, signal.SIGUSR1)
    wait_until((job.folder / FILES / "7.notice").exists)
    job.trainers_end()
    got, expected = (job.end(), requeued(job)), (0, [])
    assert got == expected


if SANDBOX := os.environ.get("SLURM_SANDBOX"):

    def on_node(*words):
        command = [sys.executable, "-m", "tutorial_lib", "on", "--name", SANDBOX, "machine-0", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def test_in_slurm():
        """Read the log of the job in scripts/out/16, and run ``squeue``. Slurm runs the script on two nodes."""
        settings = ["--num_epochs", "2", "--batch_size", "32", "--hidden", "16"]
        output = "--output=scripts/out/16/%j.log"
        number = on_node("sbatch", "--parsable", output, str(SCRIPT), *settings).split()[-1]

        def state():
            found = re.search(r"JobState=(\w+)", on_node("scontrol", "show", "job", number))
            return found and found[1]

        wait_until(lambda: state() not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), 100)
        log = (FILES / f"{number}.log").read_text()
        got, expected = (state(), len(re.findall(r"^epoch \d+  loss", log, re.MULTILINE))), ("COMPLETED", 2)
        on_node("scancel", number)
        assert got == expected
