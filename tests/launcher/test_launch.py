"""Agent and coordinator in real jobs that fail: the cause is named, and no processes or files remain."""

import time
from pathlib import Path

import pytest
from fault_support import CLEAN_EXIT_SECONDS, JobRun, make_job

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.layout import Layout
from tutorial_lib.job.train import run_distributed
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.jobspec import Limits, Machine
from tutorial_lib.partition import Partition
from tutorial_lib.trainer.config import TrainConfig

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]


def run_and_fail(partition: Partition, folder: Path, *arguments: str, limits: Limits = Limits(), **fields) -> JobFailed:
    """Run a job on two emulated machines, and return its failure."""
    with pytest.raises(JobFailed) as caught, EmulatedBackend(2) as cluster:
        JobRun(cluster, make_job(cluster, partition, folder, *arguments, **fields), limits=limits).run_job()
    return caught.value


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", "ended before the trainers; does the command call dgl.distributed.initialize?"),
        ("no-such-program", "cannot start 'no-such-program': No such file or directory"),
    ],
)
def test_server_command_that_ends_early_is_a_failure(command, words, emulation, partition_of, tmp_path):
    """L17. A server that ends before the trainers is a failure."""
    start = time.monotonic()
    failure = run_and_fail(partition_of(2), tmp_path, command=[command])
    assert str(failure).endswith(words)
    assert failure.role == "server"
    assert time.monotonic() - start < CLEAN_EXIT_SECONDS


def test_job_ends_at_its_time_limit(emulation, partition_of, tmp_path):
    failure = run_and_fail(partition_of(2), tmp_path, "hang", "1", limits=Limits(job=5))
    assert "waited 5 s for the trainers to finish on machine-0, machine-1" in str(failure)


def test_several_trainers_servers_and_samplers_without_namespaces(partition_of, tmp_path, monkeypatch):
    """The name of the temporary folder is too long for the sockets of samplers, which would stall."""
    temporary = tmp_path / ("long" * 20)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with LocalBackend(servers=2) as cluster:
        plan = make_job(cluster, partition_of(1), tmp_path, "count", "0", trainers=2, servers=2, samplers=1)
        coordinator = JobRun(cluster, plan)
        usage = coordinator.run_job()
    assert not [path.name for path in temporary.iterdir() if path.name.startswith(("pymp-", "dgl-job-"))]
    counts = [event["seeds"] for event in coordinator.events if event["kind"] == "counted"]
    assert sorted(counts) == [98, 98]  # half of the 196 first nodes each
    assert usage["machine-0"].bytes_sent == 0
    assert usage["machine-0"].peak_rss["server"] > 1e8
    logs = {path.name for path in (tmp_path / "logs" / "machine-0").glob("*.log")}
    assert logs == {"agent.log", "server-0.log", "server-1.log", "forkserver.log", "trainer-0.log", "trainer-1.log"}


def test_one_epoch_on_four_machines(emulation, partition_of, tmp_path):
    """Most other tests use two machines."""
    config = TrainConfig(epochs=1, fanouts=(5, 5), batch_size=100, hidden_size=16)
    result = run_distributed(partition_of(4), Layout(emulate=4), config, tmp_path / "run")
    assert (result["world_size"], len(result["bytes_sent"])) == (4, 4)
    assert 0 < result["test_accuracy"] < 1  # one step each does not teach much


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("RuntimeError: [gloo] Connection closed by peer [10.77.0.3]:1234", True),
        ("RuntimeError: Connection reset by peer", True),  # the trainers' store
        ("torch.distributed.DistNetworkError: Broken pipe (exit code 1)", True),
        ("no answer from machine-0 (10.77.0.1) for 26 s. That machine or the network to it is down", True),
        ("EOFError", True),  # of the pipe to a sampler that was killed
        ("EOFError: Ran out of input", False),  # a damaged file
        ("ValueError: request refused", False),
        ("RuntimeError: the bank refused, bye", False),
        ("killed by signal 9 (SIGKILL)", False),
        ("killed by signal 6 (SIGABRT)", True),  # perhaps by a C++ thread of DGL that lost its server
        ("KeyError: 3 (killed by signal 6 (SIGABRT))", False),
    ],
)
def test_consequences_of_a_failure_are_recognized(cause, consequence):
    spec = DglJob([Machine("machine-1", "10.0.0.1")], ["x"], "", "", "", ".", 1).to_spec()
    assert JobFailed(spec, 0, "trainer", 0, cause, []).is_consequence is consequence
