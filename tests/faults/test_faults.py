"""The fault matrix: one fault each into a real job on two machines. The cause is named, nothing is left, in time."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from commands import wait_until
from fault_support import (
    CLEAN_EXIT_SECONDS,
    SILENT_NETWORK_SECONDS,
    RunningJob,
    coordinator_of,
    examine,
    plan_of,
    remove_group,
)
from preflight_support import flip_last_bit
from runtime_support import MARK, marked_processes

from tutorial_lib.job.dgl import SHM_PATTERNS
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.findings import PreflightFailed
from tutorial_lib.launcher.jobspec import Limits
from tutorial_lib.launcher.shm import job_files

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]
ENDLESS = "loop:1000000"


@pytest.fixture
def machines(emulation, partition_of):
    """Two emulated machines, switched on, and a partition for them."""
    with EmulatedBackend(2) as cluster:
        yield cluster, partition_of(2)


def temporary_folders() -> set[str]:
    """Of Python's multiprocessing: those of a job are in its machine's /dev/shm, and go with the machine."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("pymp-*")}


def endless(cluster, partition, folder: Path, limits: Limits | None = None, **fields) -> RunningJob:
    """A job that never ends by itself, already running."""
    job = RunningJob(cluster, plan_of(cluster, partition, folder, ENDLESS, "-", **fields), limits)
    job.wait_for("beat", 20)
    return job


def end_of_fault(job: RunningJob, folder: Path) -> tuple[BaseException | None, float]:
    """The end of a job and the seconds since its program noted the fault."""
    error, _ = job.end()
    return error, time.time() - float((folder / "fault-at").read_text())


@pytest.mark.parametrize(
    ("fault", "words"), [("raise", "ValueError: a mistake in the training loop"), ("os._exit", "exit code 3")]
)
def test_a_trainer_that_ends_by_itself(fault, words, machines, tmp_path, saw):
    """D15, L14. A trainer that fails exits without waiting for others. Its exception is read before its exit code."""
    cluster, partition = machines
    job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, fault, "1"))
    error, seconds = end_of_fault(job, tmp_path)
    assert str(error) == f"trainer 0 (rank 1) on machine-1: {words}"
    assert (error.machine, error.role, error.rank) == ("machine-1", "trainer", 1)
    assert seconds < CLEAN_EXIT_SECONDS
    if fault == "raise":
        assert any("raise ValueError" in line for line in error.tail)
        assert words in error.log.read_text()
    saw(f"a trainer: {fault}", error, seconds)


def test_an_exception_in_a_sampler(machines, tmp_path, saw):
    """L10. The sampler's exception is the cause, not the trainer's wait for the sampler."""
    cluster, partition = machines
    job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, "sampler", "1", samplers=1))
    error, seconds = end_of_fault(job, tmp_path)
    assert str(error) == "sampler of trainer 0 (rank 1) on machine-1: ValueError: a mistake in the sampler"
    assert (error.machine, error.role, error.log.name) == ("machine-1", "sampler", "trainer-0.log")
    assert any("in sample_blocks" in line for line in error.tail)
    assert seconds < CLEAN_EXIT_SECONDS
    saw("an exception in a sampler", error, seconds)


@pytest.mark.parametrize(
    ("role", "index", "fields", "words"),
    [
        ("trainer", 0, {"forks": False}, "trainer 0 (rank 1) on machine-1"),
        ("sampler", 0, {"samplers": 1}, "sampler of trainer 0 (rank 1) on machine-1"),
        ("server", 0, {}, "server 0 on machine-1"),
        ("server", 1, {"servers": 2}, "server 1 on machine-1"),
    ],
)
def test_sigkill(role, index, fields, words, machines, tmp_path, saw):
    cluster, partition = machines
    before = temporary_folders()
    job = endless(cluster, partition, tmp_path, **fields)
    job.signal(cluster.machines[1], role, signal.SIGKILL, index)
    error, seconds = job.end()
    assert str(error) == f"{words}: killed by signal 9 (SIGKILL)"
    assert temporary_folders() == before
    assert seconds < CLEAN_EXIT_SECONDS
    name = "a backup server" if index == 1 else f"a {role}"
    saw(f"SIGKILL to {name}", error, seconds)


def test_an_abort_is_not_the_first_cause(machines, tmp_path):
    """L15. A trainer that DGL aborts, because its server is gone, can be reported before the server."""
    cluster, partition = machines
    job = endless(cluster, partition, tmp_path)
    job.signal(cluster.machines[0], "trainer", signal.SIGABRT)
    job.signal(cluster.machines[1], "server", signal.SIGKILL)
    error, _ = job.end()
    assert str(error) == "server 0 on machine-1: killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        ({"forks": True}, "trainer 0 (rank 1) on machine-1"),
        ({"forks": False, "trainers": 2}, "trainer 1 (rank 1) on machine-0"),
    ],
)
def test_a_rank_that_leaves_with_0_is_the_cause(fields, who, machines, tmp_path):
    cluster, partition = machines
    plan = plan_of(cluster, partition, tmp_path, "os._exit(0)", "1", **fields)
    error, _seconds = RunningJob(cluster, plan, Limits(stall=8)).end()
    assert str(error).startswith(f"{who}: ended with exit code 0 before the others finished")


def test_sigkill_to_an_agent(machines, tmp_path, saw):
    """Its machine's processes end with it, the others are stopped."""
    cluster, partition = machines
    job = endless(cluster, partition, tmp_path)
    job.fault_now()
    job.coordinator.agents.processes[1].kill()
    error, seconds = job.end()
    assert str(error) == "agent on machine-1: the agent ended unexpectedly (killed by signal 9 (SIGKILL))"
    assert seconds < CLEAN_EXIT_SECONDS
    # The machines are still on, and nothing of the job runs on them.
    wait_until(lambda: all("emulator" in name for name in marked_processes(os.environ[MARK])), "the end of the job", 5)
    saw("SIGKILL to an agent", error, seconds)


def test_sigstop_is_a_stall(machines, tmp_path, saw):
    """All stacks are collected, those of the stopped process too."""
    cluster, partition = machines
    job = endless(cluster, partition, tmp_path, limits=Limits(stall=4))
    job.signal(cluster.machines[1], "trainer", signal.SIGSTOP)
    error, seconds = job.end()
    assert str(error).startswith(
        "the job has not moved for 4 s: trainer 0 (rank 1) on machine-1 is stopped by a signal (SIGSTOP?), in "
    )
    assert (error.machine, error.role) == ("machine-1", "trainer")
    stacks = (tmp_path / "logs" / "stacks.txt").read_text()
    assert stacks.count("=== ") == 4  # two trainers, two servers
    assert "faulty_trainer.py" in stacks
    assert seconds < CLEAN_EXIT_SECONDS
    saw("SIGSTOP of a trainer, --stall-timeout 4", error, seconds)


def test_a_skipped_collective_shows_who_waits_where(machines, tmp_path, saw):
    cluster, partition = machines
    job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, "skip", "1"), Limits(stall=4))
    error, seconds = end_of_fault(job, tmp_path)
    assert "trainer 0 (rank 0) on machine-0 is in all_reduce" in str(error)
    assert "called from faulty_trainer.py" in str(error)
    assert "trainer 0 (rank 1) on machine-1 is in barrier" in str(error)
    assert seconds < CLEAN_EXIT_SECONDS
    saw("one rank skips a collective, --stall-timeout 4", error, seconds)


def test_a_wire_that_is_cut_for_good(machines, tmp_path, saw):
    cluster, partition = machines
    job = endless(cluster, partition, tmp_path)
    job.fault_now()
    cluster.change_link(cluster.machines[1], "cut")
    error, seconds = job.end()
    assert "no answer from machine-" in str(error)
    assert "it is down, or the network between them is" in str(error)
    assert seconds < SILENT_NETWORK_SECONDS
    saw("the wire cut for good", error, seconds)


def test_a_wire_that_is_cut_for_five_seconds(machines, tmp_path, saw):
    cluster, partition = machines
    job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, "loop:300", "-"))
    job.wait_for("beat", 4)
    cluster.change_link(cluster.machines[1], "cut")
    time.sleep(5)  # the fault itself
    before = len(job.events)
    cluster.change_link(cluster.machines[1], "mend")
    job.fault_now()
    error, seconds = job.end()
    assert error is None
    assert sum(event["kind"] == "beat" for event in job.events) == 600
    assert before < len(job.events)
    saw("the wire cut for five seconds", "none: the job goes on and ends well", seconds)


def test_one_rank_with_fewer_batches(machines, tmp_path, saw):
    cluster, partition = machines
    job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, "uneven", "-"))
    error, _ = job.end()
    assert error is None
    compared = {e["rank"]: (e["batches"], e["equal"]) for e in job.events if e["kind"] == "compared"}
    assert compared == {0: (6, True), 1: (2, True)}
    saw("one rank with fewer batches", "none: the job ends well, with the weights of a single process", None)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, mounted before the machines are made."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small-disk", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("fault", ["the run disk is full", "the run folder is removed"])
def test_a_run_folder_that_cannot_be_written(fault, small_disk, emulation, partition_of, tmp_path, saw):
    run = small_disk / "run"
    with EmulatedBackend(2) as cluster:
        plan = plan_of(cluster, partition_of(2), tmp_path, ENDLESS, "-", log_dir=str(run / "logs"))
        job = RunningJob(cluster, plan)
        job.wait_for("beat", 20)
        job.fault_now()
        if fault == "the run disk is full":
            with contextlib.suppress(OSError), (small_disk / "fill").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        else:
            shutil.rmtree(run, ignore_errors=True)
            shutil.rmtree(run, ignore_errors=True)  # the job may have written meanwhile
        error, seconds = job.end()
    if fault == "the run disk is full":
        assert "No space left on device" in str(error) or "no space left on" in str(error)
        assert str(small_disk) in str(error)
    else:
        assert "has vanished" in str(error)
    assert seconds < CLEAN_EXIT_SECONDS
    saw(fault, error, seconds)


@pytest.mark.root
@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs a memory control group (v1) to write"
)
def test_out_of_memory(machines, tmp_path, saw):
    """A real one: the kernel ends a trainer that passes the limit of its control group."""
    cluster, partition = machines
    group = Path("/sys/fs/cgroup/memory") / f"tutorial-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
        job = RunningJob(cluster, plan_of(cluster, partition, tmp_path, "memory", "1"))
        job.wait_for("joined", 2)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                log = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
                if log.is_relative_to(tmp_path) and log.parts[-2:] == ("machine-1", "trainer-0.log"):
                    (group / "cgroup.procs").write_text(str(process.pid))
        (tmp_path / "go").touch()
        error, _ = job.end()
    finally:
        remove_group(group)
    seconds = time.time() - float((tmp_path / "fault-at").read_text())
    assert str(error).startswith(
        "trainer 0 (rank 1) on machine-1: killed by signal 9 (SIGKILL); the kernel ended a process"
    )
    assert "for want of memory" in str(error)
    assert seconds < CLEAN_EXIT_SECONDS
    saw("out of memory", error, seconds)


def refused(cluster, plan, words: str) -> PreflightFailed:
    """Run a job that must be refused before anything is started."""
    start = time.monotonic()
    with pytest.raises(PreflightFailed) as caught:
        coordinator_of(cluster, plan).run_job()
    assert words in str(caught.value)
    assert time.monotonic() - start < CLEAN_EXIT_SECONDS
    assert not list(Path(plan.log_dir).glob("*/server-*.log"))
    return caught.value


def test_a_port_that_is_taken(machines, tmp_path, saw):
    cluster, partition = machines
    code = "import socket, time; s = socket.create_server(('', 30050)); print('up', flush=True); time.sleep(1000)"
    other = cluster.popen(cluster.machines[1], [sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"up\n"
    error = refused(cluster, plan_of(cluster, partition, tmp_path, "none", "-"), "machine-1: ports: ")
    assert "30050 (server 0) is taken by process" in str(error)
    saw("a port is taken", error, None)
    other.kill()
    other.communicate()


def test_addresses_in_the_wrong_order(machines, tmp_path, saw):
    cluster, partition = machines
    plan = plan_of(cluster, partition, tmp_path, "none", "-")
    first, second = plan.machines
    swapped = [replace(first, address=second.address), replace(second, address=first.address)]
    sentence = "machine-0: address: 10.77.0.2 (line 1) does not belong to this machine"
    error = refused(cluster, replace(plan, machines=swapped), sentence)
    assert "in wrong order?" in error.remedy
    assert "machine-1: address" in error.remedy
    saw("addresses in the wrong order", error, None)


def test_a_wrong_number_of_addresses(machines, tmp_path, saw, monkeypatch):
    cluster, partition = machines
    monkeypatch.setattr(cluster, "machines", cluster.machines[:1])
    plan = plan_of(cluster, partition, tmp_path, "none", "-")
    error = refused(cluster, plan, "2 parts")
    saw("a wrong number of addresses", error, None)


DAMAGES = {"missing": Path.unlink, "truncated": lambda path: os.truncate(path, 1000), "bit-flipped": flip_last_bit}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_partition_file(damage, machines, tmp_path, saw):
    cluster, partition = machines
    folder = tmp_path / "parts"
    shutil.copytree(partition.folder, folder)
    DAMAGES[damage](folder / "part1" / "node_feat.dgl")
    plan = plan_of(cluster, partition, tmp_path, "none", "-", part_config=str(folder / partition.config.name))
    error = refused(cluster, plan, "node_feat.dgl")
    assert [finding.machine for finding in error.findings if finding.status == "fail"] == ["machine-1"]
    saw(f"a {damage} partition file", error, None)


def test_another_dgl_version_on_one_machine(machines, tmp_path, saw):
    """Really another one, as far as the machine's own package data say: they are replaced in its mount namespace."""
    import importlib.metadata

    cluster, partition = machines
    folder = importlib.metadata.distribution("dgl")._path
    text = (folder / "METADATA").read_text()
    (tmp_path / "METADATA").write_text(text.replace("Version: 2.1.0", "Version: 2.0.0"))
    command = ["mount", "--bind", str(tmp_path / "METADATA"), str(folder / "METADATA")]
    assert cluster.popen(cluster.machines[1], command).wait(timeout=10) == 0
    words = "machine-1: versions: dgl is 2.0.0, machine-0 has 2.1.0"
    error = refused(cluster, plan_of(cluster, partition, tmp_path, "none", "-"), words)
    saw("another dgl version on one machine", error, None)


def test_a_shared_memory_that_is_too_small(emulation, partition_of, tmp_path, saw):
    with EmulatedBackend(2, shm_bytes=2 << 20) as cluster:
        plan = plan_of(cluster, partition_of(2), tmp_path, "none", "-")
        saw("/dev/shm too small for the part", refused(cluster, plan, "/dev/shm"), None)


def test_a_shared_memory_that_fills_up(emulation, partition_of, tmp_path, saw):
    """What the part needs is there; then something else takes the rest while the servers load."""
    with EmulatedBackend(2, shm_bytes=40 << 20) as cluster:
        plan = plan_of(cluster, partition_of(2), tmp_path, "none", "-")
        job = RunningJob(cluster, plan)
        job.wait_for("stage", 2)
        fill = ["sh", "-c", "head -c 39M /dev/zero > /dev/shm/something-else"]
        job.fault_now()
        cluster.popen(cluster.machines[1], fill, stderr=subprocess.DEVNULL).wait(timeout=10)
        error, seconds = job.end()
    assert isinstance(error, JobFailed)
    assert str(error).startswith("server 0 on machine-1: ")
    assert seconds < CLEAN_EXIT_SECONDS
    saw("/dev/shm fills up meanwhile", error, seconds)


def test_a_fault_in_one_job_does_not_touch_another(emulation, partition_of, tmp_path, saw):
    with EmulatedBackend(2) as first, EmulatedBackend(2) as second:
        for name in "ab":
            (tmp_path / name).mkdir()
        doomed = endless(first, partition_of(2), tmp_path / "a")
        other = RunningJob(second, plan_of(second, partition_of(2), tmp_path / "b", "loop:100", "-"))
        other.wait_for("beat", 2)
        doomed.signal(first.machines[0], "server", signal.SIGKILL)
        error, seconds = doomed.end()
        assert str(error) == "server 0 on machine-0: killed by signal 9 (SIGKILL)"
        assert other.end()[0] is None
    saw("SIGKILL to a server while another job runs on this computer", f"{error}; the other job ends well", seconds)


def test_a_stale_segment_of_a_killed_job(partition_of, tmp_path, saw):
    """The agent of a job without namespaces is killed, and its coordinator too: the next job cleans up."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from fault_support import coordinator_of, plan_of
from pathlib import Path
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.partition import load_partition_folder
partition = load_partition_folder(Path({str(partition_of(1).folder)!r}))
with LocalBackend() as cluster:
    coordinator = coordinator_of(cluster, plan_of(cluster, partition, Path({str(tmp_path)!r}), {ENDLESS!r}, "-"))
    pids = lambda: [process.pid for process in coordinator.agents.processes]
    coordinator.coordinator.on_event = lambda event: print(event["kind"], *pids(), flush=True)
    coordinator.run_job()
"""
    command = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    agent = next(int(line.split()[1]) for line in command.stdout if line.startswith("beat"))
    os.kill(command.pid, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    command.wait()
    command.stdout.close()

    def cleaned() -> bool:
        assert job_files(SHM_PATTERNS), "the killed job left nothing, so there was nothing to clean"
        with LocalBackend() as cluster:
            return not examine(cluster, plan_of(cluster, partition_of(1), tmp_path)).failed

    wait_until(cleaned, "the end of its processes", 30)
    assert job_files(SHM_PATTERNS) == []
    saw("stale segments of a killed job", "none: the next job removes them and runs", None)
