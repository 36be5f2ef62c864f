"""Listening addresses during a job: each machine uses its own address, a single machine loopback only."""

import json
import subprocess
import sys

import psutil
import pytest
from fault_support import RunningJob, make_job

from tutorial_lib.job.dgl import DglJob
from tutorial_lib.launcher.backends import Backend, LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]

# Print the listening TCP sockets and the UDP sockets of a machine: (address, port, PID or None).
LOOK = """
import json, psutil
found = [[c.laddr.ip, c.laddr.port, c.pid] for c in psutil.net_connections("inet") if c.laddr and not c.raddr]
print(json.dumps(found))
"""


def check_addresses(found: list[tuple[str, int, int | None]], plan, machine) -> None:
    """Check that servers, trainers and samplers listen, and only on the address of the machine."""
    ports = {port for _address, port, _pid in found}
    assert {machine.port + server for server in range(plan.servers)} <= ports, found
    assert (plan.master_port in ports) == (machine == plan.machines[0]), found
    # Gloo has a socket in each trainer, and DGL has one in each trainer and in each sampler.
    assert len(found) >= plan.servers + plan.trainers * (1 + 1 + plan.samplers), found
    assert {address for address, _port, _pid in found} == {machine.address}, found


def test_a_job_on_two_machines_listens_on_their_addresses_only(emulation, partition_of, tmp_path):
    with EmulatedBackend(2) as cluster:
        check_during_job(cluster, make_job(cluster, partition_of(2), tmp_path, "loop:60", "-", samplers=1))


def test_a_job_on_this_computer_listens_on_loopback_only(partition_of, tmp_path):
    with LocalBackend(servers=2) as cluster:
        numbers = {"trainers": 2, "samplers": 1, "servers": 2, "forks": False}
        check_during_job(cluster, make_job(cluster, partition_of(1), tmp_path, "loop:60", "-", **numbers))


def check_during_job(cluster: Backend, plan: DglJob) -> None:
    job = RunningJob(cluster, plan)
    try:
        job.wait_for("beat", 4, seconds=120)
        own = {process.pid for process in psutil.Process().children(recursive=True)}
        for machine in cluster.machines:
            process = cluster.popen(machine, [sys.executable, "-c", LOOK], stdout=subprocess.PIPE, text=True)
            found = [tuple(entry) for entry in json.loads(process.communicate(timeout=20)[0])]
            if isinstance(cluster, LocalBackend):  # other programs listen here, too
                found = [entry for entry in found if entry[2] in own]
            check_addresses(found, plan, machine)
    finally:
        error, _ = job.end()
    assert error is None
