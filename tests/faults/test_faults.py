"""The fault matrix: each test injects a fault into a real job and checks the cause, the cleanup and the time."""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import find_trainers, restore_default_signals, wait_for_event, wait_until
from fault_support import (
    CLEAN_EXIT_SECONDS,
    SILENT_NETWORK_SECONDS,
    JobRun,
    RunningJob,
    make_job,
    run_checks,
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
ENDLESS, RANK_1 = "loop:1000000", "trainer 0 (rank 1) on machine-1"


@pytest.fixture
def cluster(emulation, request) -> Iterator[EmulatedBackend]:
    """Two running emulated machines."""
    with EmulatedBackend(2, **getattr(request, "param", {})) as machines:
        yield machines


@pytest.fixture
def start(cluster, partition_of, tmp_path) -> Callable[..., RunningJob]:
    """``start(fault, rank)`` starts a job on the two machines. An endless job has finished some steps."""

    def job(fault: str = ENDLESS, rank: str = "-", limits: Limits = Limits(), **fields) -> RunningJob:
        running = RunningJob(cluster, make_job(cluster, partition_of(2), tmp_path, fault, rank, **fields), limits)
        if fault.startswith("loop"):
            running.wait_for("beat", 20)
        running.start_fault_clock()
        return running

    return job


@pytest.fixture
def end(record_fault, tmp_path) -> Callable[..., JobFailed]:
    """``end(job, fault)`` returns the failure of a job within the time limit and records it."""

    def wait(job: RunningJob, fault: str, limit: float = CLEAN_EXIT_SECONDS) -> JobFailed:
        error, seconds = job.end()
        if (noted := tmp_path / "fault-at").exists():  # the program injected the fault
            seconds = time.time() - float(noted.read_text())
        assert isinstance(error, JobFailed)
        assert seconds < limit
        record_fault(fault, error, seconds)
        return error

    return wait


LEFT = "ended with exit code 0 while other ranks were running"


@pytest.mark.parametrize(
    ("fault", "fields", "printed", "in_the_tail"),
    [
        ("raise", {}, f"{RANK_1}: ValueError: a mistake in the training loop", "raise ValueError"),
        ("sampler", {"samplers": 1}, f"sampler of {RANK_1}: ValueError: a mistake in the sampler", "sample_blocks"),
        ("os._exit", {}, f"{RANK_1}: exit code 3", ""),
        ("os._exit(0)", {"forks": True}, f"{RANK_1}: {LEFT}", ""),
        ("os._exit(0)", {"forks": False, "trainers": 2}, f"trainer 1 (rank 1) on machine-0: {LEFT}", ""),
    ],
)
def test_failing_process_is_the_reported_cause(fault, fields, printed, in_the_tail, start, end):
    """D15, L10, L14. A trainer that fails exits without waiting for others. Its exception is read before its exit code.

    The exception of a sampler is the cause, not the trainer's wait for the sampler.
    """
    job = start(fault, "1", Limits(stall=8), **fields)
    error = end(job, "an exception in a sampler" if fault == "sampler" else f"a trainer: {fault}")
    assert str(error).startswith(printed)
    assert f"on {error.machine}" in printed
    assert printed.startswith(f"{error.role} ")
    assert in_the_tail in "\n".join(error.tail)
    assert fault != "raise" or "a mistake in the training loop" in error.log.read_text()


@pytest.mark.parametrize(
    ("role", "index", "fields", "words"),
    [
        ("trainer", 0, {"forks": False}, RANK_1),
        ("sampler", 0, {"samplers": 1}, f"sampler of {RANK_1}"),
        ("server", 0, {}, "server 0 on machine-1"),
        ("server", 1, {"servers": 2}, "server 1 on machine-1"),
    ],
)
def test_sigkill(role, index, fields, words, cluster, start, end):
    temporary = Path(tempfile.gettempdir())  # multiprocessing's folders are in the machine's /dev/shm, and go with it
    before = set(temporary.glob("pymp-*"))
    job = start(**fields)
    job.signal(cluster.machines[1], role, signal.SIGKILL, index)
    error = end(job, f"SIGKILL to a{' backup' if index else ''} {role}")
    assert str(error) == f"{words}: killed by signal 9 (SIGKILL)"
    assert set(temporary.glob("pymp-*")) == before


def test_abort_of_trainer_is_not_the_cause(cluster, start):
    """L15. A trainer that DGL aborts, because its server is gone, can be reported before the server."""
    job = start()
    job.signal(cluster.machines[0], "trainer", signal.SIGABRT)
    job.signal(cluster.machines[1], "server", signal.SIGKILL)
    assert str(job.end()[0]) == "server 0 on machine-1: killed by signal 9 (SIGKILL)"


def test_sigkill_to_an_agent(start, end):
    """The processes of its machine end with it, and the others are stopped."""
    job = start()
    job.job_run.agents.processes[1].kill()
    error = end(job, "SIGKILL to an agent")
    cause = "killed by signal 9 (SIGKILL)); were its emulated machines stopped (machines stop, --ttl)?"
    assert str(error) == f"agent on machine-1: the agent ended unexpectedly ({cause}"
    # The machines are still on, and nothing of the job runs on them.
    wait_until(lambda: all("machine_daemon" in name for name in marked_processes(os.environ[MARK])), "no process", 5)


def test_sigstop_is_reported_as_stall(cluster, start, tmp_path, end):
    """All stacks are collected, also from the stopped process."""
    job = start(limits=Limits(stall=4))
    job.signal(cluster.machines[1], "trainer", signal.SIGSTOP)
    error = end(job, "SIGSTOP of a trainer, --stall-timeout 4")
    assert str(error).startswith(
        f"the job has made no progress for 4 s: {RANK_1} is stopped by a signal (SIGSTOP?), in "
    )
    assert (error.machine, error.role) == ("machine-1", "trainer")
    stacks = (tmp_path / "logs" / "stacks.txt").read_text()
    assert stacks.count("=== ") == 4  # two trainers, two servers
    assert "faulty_trainer.py" in stacks


def test_skipped_collective_reports_stack_of_each_rank(start, end):
    error = end(start("skip", "1", Limits(stall=4)), "one rank skips a collective, --stall-timeout 4")
    assert "trainer 0 (rank 0) on machine-0 is in all_reduce" in str(error)
    assert "called from faulty_trainer.py" in str(error)
    assert f"{RANK_1} is in barrier" in str(error)


def test_permanent_network_cut_ends_the_job(cluster, start, end):
    job = start()
    cluster.change_link(cluster.machines[1], "cut")
    error = end(job, "the link is cut for good", SILENT_NETWORK_SECONDS)
    assert "no answer from machine-" in str(error)
    assert ". That machine or the network to it is down" in str(error)


def test_job_survives_network_cut_of_five_seconds(cluster, start, record_fault):
    job = start("loop:300")
    cluster.change_link(cluster.machines[1], "cut")
    time.sleep(5)  # the fault itself
    before = len(job.events)
    cluster.change_link(cluster.machines[1], "mend")
    job.start_fault_clock()
    error, seconds = job.end()
    assert error is None
    assert sum(event["kind"] == "beat" for event in job.events) == 600
    assert before < len(job.events)
    record_fault("the link is cut for five seconds", "none: the job continues and succeeds", seconds)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB, mounted before the machines are made."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small-disk", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_run_folder(small_disk, start, end):
    job = start(log_dir=str(small_disk / "run" / "logs"))
    with contextlib.suppress(OSError), (small_disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    error = str(end(job, "the run disk is full"))
    assert "no space left on" in error.lower()
    assert str(small_disk) in error


def test_removed_run_folder(start, tmp_path, end):
    job = start(log_dir=str(tmp_path / "run" / "logs"))
    for _ in range(2):  # the job may have written meanwhile
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert "has vanished" in str(end(job, "the run folder is removed"))


@pytest.mark.root
@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="needs a memory control group (v1) to write"
)
def test_out_of_memory(start, tmp_path, end):
    """The kernel kills a trainer that exceeds the limit of its control group."""
    group = Path("/sys/fs/cgroup/memory") / f"tutorial-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
        job = start("memory", "1")
        job.wait_for("joined", 2)
        for process in find_trainers(1):
            (group / "cgroup.procs").write_text(str(process.pid))
        (tmp_path / "go").touch()
        error = str(end(job, "out of memory"))
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), f"the end of what is in {group}")
        group.rmdir()
    assert error.startswith(f"{RANK_1}: killed by signal 9 (SIGKILL); at that time the kernel killed a process")
    assert "because memory ran out" in error


@pytest.fixture
def refused(cluster, partition_of, tmp_path, record_fault) -> Callable[..., PreflightFailed]:
    """``refused(fault, words)`` checks that a job is refused before it starts, and records the fault."""

    def run(fault: str, words: str, **fields) -> PreflightFailed:
        plan = make_job(cluster, partition_of(2), tmp_path, "none", "-", **fields)
        begin = time.monotonic()
        with pytest.raises(PreflightFailed) as caught:
            JobRun(cluster, plan).run_job()
        assert words in str(caught.value)
        assert time.monotonic() - begin < CLEAN_EXIT_SECONDS
        assert not list(Path(plan.log_dir).glob("*/server-*.log"))
        record_fault(fault, caught.value, None)
        return caught.value

    return run


def test_unusable_machines_and_addresses_are_refused(cluster, refused, tmp_path):
    code = "import socket, time; s = socket.create_server(('', 30050)); print('up', flush=True); time.sleep(1000)"
    other = cluster.popen(cluster.machines[1], [sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"up\n"
    refused("a port is taken", "machine-1: ports: 30050 (server 0) is taken by process")
    other.kill()
    other.communicate()
    first, second = cluster.machines
    swapped = [replace(first, address=second.address), replace(second, address=first.address)]
    sentence = "machine-0: address: 10.77.0.2 (line 1) does not belong to this machine"
    error = refused("addresses in the wrong order", sentence, machines=swapped)
    assert "Check the order of the lines" in error.remedy
    assert "machine-1: address" in error.remedy
    cluster.machines = [first]
    refused("a wrong number of addresses", "2 parts")
    cluster.machines = [first, second]
    # In the mount namespace of the second machine, the metadata of DGL contain another version.
    metadata = importlib.metadata.distribution("dgl")._path / "METADATA"
    (tmp_path / "METADATA").write_text(metadata.read_text().replace("Version: 2.1.0", "Version: 2.0.0"))
    command = ["mount", "--bind", str(tmp_path / "METADATA"), str(metadata)]
    assert cluster.popen(second, command).wait(timeout=10) == 0
    refused("another dgl version on one machine", "dgl 2.0.0; machine-0 has python")


def test_damaged_partition_file_is_refused(partition_of, refused, tmp_path):
    folder = tmp_path / "parts"
    shutil.copytree(partition_of(2).folder, folder)
    file, config = folder / "part1" / "node_feat.dgl", folder / partition_of(2).config.name
    damages = {"bit-flipped": flip_last_bit, "truncated": lambda path: os.truncate(path, 1000), "missing": os.unlink}
    for damage, change in damages.items():
        change(file)
        error = refused(f"a {damage} partition file", "node_feat.dgl", part_config=str(config))
        assert [finding.machine for finding in error.findings if finding.status == "fail"] == ["machine-1"]


@pytest.mark.parametrize("cluster", [{"shm_bytes": 2 << 20}], indirect=True)
def test_too_small_shared_memory_is_refused(refused):
    refused("/dev/shm too small for the part", "/dev/shm")


@pytest.mark.parametrize("cluster", [{"shm_bytes": 40 << 20}], indirect=True)
def test_shared_memory_fills_up_while_servers_load(cluster, start, end):
    """The part would fit, but another file uses the memory while the servers load."""
    job = start("none")
    job.wait_for("stage", 2)
    fill = ["sh", "-c", "head -c 39M /dev/zero > /dev/shm/something-else"]
    job.start_fault_clock()
    cluster.popen(cluster.machines[1], fill, stderr=subprocess.DEVNULL).wait(timeout=10)
    assert str(end(job, "/dev/shm fills up meanwhile")).startswith("server 0 on machine-1: ")


def test_fault_in_one_job_does_not_affect_another(cluster, start, partition_of, tmp_path, record_fault):
    (other_folder := tmp_path / "other").mkdir()
    with EmulatedBackend(2) as second:
        doomed = start()
        other = RunningJob(second, make_job(second, partition_of(2), other_folder, "loop:100", "-"))
        other.wait_for("beat", 2)
        doomed.signal(cluster.machines[0], "server", signal.SIGKILL)
        error, seconds = doomed.end()
        assert str(error) == "server 0 on machine-0: killed by signal 9 (SIGKILL)"
        assert other.end()[0] is None
    record_fault(
        "SIGKILL to a server while another job runs on this computer", f"{error}; the other job succeeds", seconds
    )


def test_next_job_removes_segments_of_killed_job(partition_of, tmp_path, record_fault):
    """The agent and the coordinator of a job without namespaces are killed."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from fault_support import JobRun, make_job
from pathlib import Path
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.partition import load_partition_folder
partition = load_partition_folder(Path({str(partition_of(1).folder)!r}))
with LocalBackend() as cluster:
    job = JobRun(cluster, make_job(cluster, partition, Path({str(tmp_path)!r}), {ENDLESS!r}, "-"))
    job.coordinator.on_event = lambda event: print(event["kind"], job.agents.processes[0].pid, flush=True)
    job.run_job()
"""
    command = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    agent = next(int(line.split()[1]) for line in command.stdout if line.startswith("beat"))
    os.kill(command.pid, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    command.communicate()

    def cleaned() -> bool:
        assert job_files(SHM_PATTERNS), "the killed job left nothing, so there was nothing to clean"
        with LocalBackend() as cluster:
            return not run_checks(cluster, make_job(cluster, partition_of(1), tmp_path)).failed

    wait_until(cleaned, "the end of its processes", 30)
    assert job_files(SHM_PATTERNS) == []
    record_fault("stale segments of a killed job", "none: the next job removes them and runs", None)


EMULATED, LOCAL = ["--emulate", "2"], ["--machines", "1"]


@pytest.mark.parametrize(
    ("machines", "sent", "code"),
    [
        (EMULATED, signal.SIGINT, 130),
        (LOCAL, signal.SIGTERM, 143),
        (EMULATED, signal.SIGHUP, 129),
        (LOCAL, signal.SIGKILL, -9),
    ],
)
def test_signal_to_command_ends_all_processes(machines, sent, code, emulation, data_root, tmp_path, record_fault):
    arguments = [*machines, "--scale", "0.005", "--epochs", "10000", "--root", str(data_root)]
    command = subprocess.Popen(
        [sys.executable, "-m", "tutorial_lib", "train", *arguments, "--out", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=restore_default_signals,
    )
    try:
        wait_for_event(tmp_path / "run", "epoch", command)
        start = time.monotonic()
        if sent == signal.SIGINT:
            os.killpg(command.pid, sent)  # as a terminal does: every process of the foreground group gets it
        else:
            command.send_signal(sent)
        errors = command.communicate(timeout=CLEAN_EXIT_SECONDS)[1]
    finally:
        command.kill()
    assert command.returncode == code
    lines = errors.partition("\nto continue: ")[0].splitlines()
    last = (lines or ["nothing: the command itself was killed"])[-1]
    record_fault(f"{sent.name} to the command, {' '.join(machines)}", last, time.monotonic() - start)
    cause = {"SIGINT": "interrupted", "SIGHUP": "terminated by SIGHUP", "SIGTERM": "terminated by SIGTERM"}.get(
        sent.name
    )
    assert cause is None or last == f"{cause}; all started processes have been stopped"
