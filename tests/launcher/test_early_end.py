"""A rank that ends with exit code 0 in the middle of a job is named as the cause."""

import pytest
from fault_support import RunningJob, plan_of

from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.failure import JobFailed
from tutorial_lib.launcher.jobspec import Limits


@pytest.mark.parametrize(
    ("fields", "rank", "who"),
    [
        ({"forks": True}, 1, "trainer 0 (rank 1) on machine-1"),
        ({"forks": False, "trainers": 2}, 1, "trainer 1 (rank 1) on machine-0"),
    ],
    ids=["forked", "two-on-a-machine"],
)
def test_a_rank_that_leaves_with_0_is_the_cause(fields, rank, who, emulation, nothing_left, partition_of, tmp_path):
    cluster = EmulatedBackend(2)
    with cluster:
        plan = plan_of(cluster, partition_of(2), tmp_path, "os._exit(0)", str(rank), **fields)
        error, _seconds = RunningJob(cluster, plan, Limits(stall=8)).end()
    assert isinstance(error, JobFailed)
    assert str(error).startswith(f"{who}: ended with exit code 0 before the others finished")
