"""Jobs in allocations of a real Slurm (munge, slurmctld, slurmd) on emulated machines."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from commands import tutorial, wait_until
from runtime_support import MARK, FinishedRun

from support import sandbox
from support.lessons.programs import why_not
from tutorial_lib.errors import InputError, WaitedTooLong, retry_until_timeout
from tutorial_lib.launcher.backends.remote import SlurmBackend
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Hello

NAME, NODES = "slurm-lab", 3
DAEMON_NAMES = {*sandbox.DAEMONS, "slurmscriptd", "slurmctld:", "slurmstepd"}


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Slurm with three nodes. Skip the tests if the host cannot run it."""
    if reason := why_not("Slurm"):
        pytest.skip(reason)
    with sandbox.slurm_machines(NODES, name=NAME, ttl="20m"):
        yield


def on(machine: str, *words: str, code: int = 0) -> str:
    """Run a command on a machine and return its output."""
    done = tutorial("on", "--name", NAME, machine, *words, code=code, timeout=120)
    return done.stdout + done.stderr


def submit(folder: Path, nodes: int, *command: str, options: tuple[str, ...] = ()) -> int:
    """Write the script in a folder, submit it to Slurm and return the number of the job."""
    folder.mkdir(exist_ok=True)
    tutorial("submit", "--nodes", str(nodes), "--partition", "main", *command, cwd=folder)
    done = on("machine-0", "sbatch", "--parsable", "--chdir", str(folder), *options, str(folder / "job.sh"))
    return int(done.split(";")[0])


def settings_of(run: FinishedRun) -> list[str]:
    """Return the options of a run without those for machines."""
    pairs = zip(run.options[::2], run.options[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in ("--emulate", "--wire") for word in pair]


def state(job: int | str) -> dict[str, str]:
    """Return the fields of a job in Slurm: ``JobState``, ``Restarts``, ``ExitCode``, ..."""
    words = on("machine-0", "scontrol", "show", "job", str(job)).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def wait_for(job: int | str, *states: str, seconds: float = 240) -> str:
    """Wait until a job has one of these states, and return the state."""
    for _left in retry_until_timeout(f"job {job} to be {' or '.join(states)}", seconds, pause=0.3):
        if (found := state(job)["JobState"]) in states:
            return found
        assert found in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), found
    raise AssertionError


def wait_for_text(log: Path, text: str) -> None:
    wait_until(lambda: log.exists() and text in log.read_text(), f"{text!r} in {log.name}", 120)


def list_processes_and_shm() -> list[str]:
    """Return processes and files in /dev/shm of the nodes, except those of Slurm and munge."""
    printed = [on(f"machine-{k}", "sh", "-c", "ps -eo pid= -o comm=; ls /dev/shm") for k in range(NODES)]
    words = [line.split()[-1] for line in "".join(printed).splitlines() if line.split()[0] != "1"]
    return [w for w in words if w not in {*DAEMON_NAMES, "munge.socket", "munge.socket.lock", "sh", "ps", "ls"}]


def wait_until_idle() -> None:
    with suppress(WaitedTooLong):
        wait_until(lambda: not list_processes_and_shm(), "the nodes to be free")
    assert list_processes_and_shm() == []


@pytest.mark.cluster
def test_submit_finale_to_slurm(slurm, data_root, tmp_path):
    """One command writes the script and submits it."""
    (folder := tmp_path / "a").mkdir()
    settings = ["--scale", "0.005", "--fanouts", "5,5", "--hidden-size", "16", "--epochs", "1"]
    words = ["submit", "--go", "--nodes", "2", "--partition", "main", "finale", *settings, "--root", str(data_root)]
    there = f"cd {shlex.quote(str(folder))} && {shlex.join([sys.executable, '-m', 'tutorial_lib', *words])}"
    job = int(on("machine-0", "sh", "-c", there).split("Submitted batch job ")[1].split()[0])
    wait_for(job, "COMPLETED")
    assert json.loads((folder / "runs" / str(job) / "result.json").read_text())["machines"] == 2
    wait_until_idle()


@pytest.mark.cluster
def test_preempted_job_resumes_with_equal_losses(slurm, finished_run: FinishedRun, tmp_path):
    """A job of another partition preempts the training. Slurm requeues and restarts the job."""
    folder, undisturbed = tmp_path / "a", tmp_path / "undisturbed"
    job = submit(folder, 2, "train", *settings_of(finished_run), "--epochs", "9")
    log = folder / "runs" / f"{job}.log"
    wait_for_text(log, "epoch 2/9")
    all_nodes = ["-p", "urgent", "-N", str(NODES), "-o", "/dev/null"]
    urgent = on("machine-0", "sbatch", "--parsable", *all_nodes, "--wrap", "true")
    wait_for(int(urgent), "COMPLETED")
    wait_for(job, "PENDING")  # Slurm waits two minutes, because the nodes may be faulty
    wait_until_idle()
    on("machine-0", "scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(job, "COMPLETED")
    assert state(job)["Restarts"] == "1"
    result = json.loads((folder / "runs" / str(job) / "result.json").read_text())
    assert result["resumed_epochs"] >= 2
    tutorial("train", *finished_run.options, "--epochs", "9", "--out", str(undisturbed))
    expected = json.loads((undisturbed / "result.json").read_text())
    assert [e["loss"] for e in result["epochs"]] == [e["loss"] for e in expected["epochs"]]


@pytest.mark.cluster
def test_array_jobs_with_cancellation_and_time_limit(slurm, data_root, tmp_path):
    folder = tmp_path / "a"
    settings = ["--scale", "0.005", "--fanouts", "5,5", "--hidden-size", "16", "--root", str(data_root)]
    settings += ["--batch-size", "2"]  # long epochs, so that the signals arrive in the middle of one
    array = submit(folder, 1, "train", *settings, "--epochs", "2000", options=("--array=0-1",))
    tasks = [f"{array}_0", f"{array}_1"]
    for task in tasks:
        wait_for(task, "RUNNING")  # only a running task has a separate job ID
    logs = [folder / "runs" / f"{state(task)['JobId']}.log" for task in tasks]
    for log in logs:
        wait_for_text(log, "epoch    2/2000")
    assert state(tasks[0])["NodeList"] != state(tasks[1])["NodeList"]
    on("machine-0", "scancel", tasks[1])
    wait_for(tasks[1], "CANCELLED")
    wait_for_text(logs[1], "terminated by SIGTERM; all started processes have been stopped")
    before = logs[0].read_text().count("epoch")
    wait_until(lambda: logs[0].read_text().count("epoch") > before, "the other job to go on", 60)
    hours, minutes, seconds = map(int, state(tasks[0])["RunTime"].split(":"))
    limit = 60 * hours + minutes + 1 + seconds // 30  # minutes. Slurm sends the signal a minute before the limit
    on("machine-0", "scontrol", "update", f"JobId={state(tasks[0])['JobId']}", f"TimeLimit={limit}")
    assert wait_for(tasks[0], "FAILED", "TIMEOUT") == "FAILED"  # the job exits with code 143 before the limit
    wait_for_text(logs[0], "terminated by SIGTERM")
    events = (logs[0].with_suffix("") / "events.jsonl").read_text().splitlines()
    kinds = [kind for kind in (json.loads(line)["kind"] for line in events) if kind in ("step", "checkpoint")]
    assert kinds[-1] == "checkpoint"  # only the script got the signal, so the ranks could save
    on("machine-0", "scontrol", "requeue", tasks[0])
    on("machine-0", "scontrol", "update", f"JobId={state(tasks[0])['JobId']}", "TimeLimit=10", "StartTime=now")
    wait_for_text(logs[0], "continuing after")  # "step", or "epoch" if the signal arrived during validation
    on("machine-0", "scancel", tasks[0])
    wait_for(tasks[0], "CANCELLED")
    wait_until_idle()


@pytest.mark.cluster
def test_contract_of_backends_in_allocation(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv(MARK, "slurm")
    code = "from test_backends import Path, check_contract; from tutorial_lib.launcher.backends import remote\n"
    code += f"check_contract(remote.SlurmBackend(), Path({str(tmp_path)!r}))"
    on("machine-0", "salloc", "--quiet", "--nodes", "2", "--partition", "main", sys.executable, "-c", code)
    wait_until_idle()


@pytest.fixture
def allocation(tmp_path, monkeypatch) -> None:
    """An allocation of three nodes with fake programs of Slurm."""
    for name, text in {"scontrol": "echo a; echo b; echo c", "srun": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b,c")


def test_backend_uses_all_nodes_of_allocation(allocation, tmp_path, monkeypatch):
    """L27. A step shares CPUs and memory of the job, and starts in a folder that every node has."""
    cluster = SlurmBackend()
    assert [machine.name for machine in cluster.machines] == ["a", "b", "c"]
    words = cluster.popen(cluster.machines[1], ["true"], stdout=subprocess.PIPE, text=True).communicate()[0]
    assert {"--overlap", "--mem=0", "--chdir=/", "--nodelist=b"} <= {*words.split()}
    with pytest.raises(InputError, match=r"--subnet 10\.1: "):
        SlurmBackend("10.1")
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(InputError, match="not inside a Slurm allocation"):
        SlurmBackend()


def test_address_of_slurm_node(allocation):
    def resolve(subnet: str | None, **cards: str) -> str:
        cluster = SlurmBackend(subnet)
        cluster.machines = [Machine("no-such-node.invalid", "")]
        addresses = {"lo": ["127.0.0.1"], **{card: [address] for card, address in cards.items()}}
        cluster.resolve([Hello("", "/home/me", addresses)])
        return cluster.machines[0].address

    assert resolve(None, eth0="10.0.0.5") == "10.0.0.5"
    assert resolve("10.1.0.0/16", eth0="10.0.0.5", ib0="10.1.0.5") == "10.1.0.5"
    with pytest.raises(InputError, match="2 of its addresses match its name"):
        resolve(None, eth0="10.0.0.5", ib0="10.1.0.5")
