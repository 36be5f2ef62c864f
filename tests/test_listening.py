"""Who listens where while a job runs: each machine on its own address, and with one machine on loopback only."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
from fault_support import RunningJob, plan_of

from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.local import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("nothing_left")]

# All sockets of the network that it runs in, TCP that listens and UDP: (address, port, process number or None).
LOOK = """
import json, psutil
found = [[c.laddr.ip, c.laddr.port, c.pid] for c in psutil.net_connections("inet") if c.laddr and not c.raddr]
print(json.dumps(found))
"""


def listening(cluster, machine) -> list[tuple[str, int, int | None]]:
    process = cluster.popen(machine, [sys.executable, "-c", LOOK], stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=20)
    return [tuple(entry) for entry in json.loads(out)]


def check(found: list[tuple[str, int, int | None]], machine, store: int | None) -> None:
    """Two servers, two trainers with a sampler each: all of them there, and all on the machine's address."""
    ports = {port for _address, port, _pid in found}
    assert {machine.port, machine.port + 1} | ({store} - {None}) <= ports, found
    assert len(found) >= 2 + 2 + 2 * 2, found  # the trainers' gloo; DGL in trainers and in samplers
    assert {address for address, _port, _pid in found} == {machine.address}, found


def test_a_job_on_two_machines_listens_on_their_addresses_only(emulation, partition_of, tmp_path):
    with EmulatedCluster(2) as cluster:
        plan = plan_of(cluster, partition_of(2), tmp_path, "loop:200", "-", trainers=2, samplers=1, servers=2)
        job = RunningJob(cluster, plan)
        try:
            job.wait_for("beat", 8, seconds=120)
            for machine, store in zip(cluster.machines, (plan.master_port, None), strict=True):
                check(listening(cluster, machine), machine, store)  # nothing else runs in their networks
        finally:
            error, _ = job.end()
    assert error is None


def test_a_job_on_this_computer_listens_on_loopback_only(partition_of, tmp_path):
    with LocalCluster(servers=2) as cluster:
        plan = plan_of(cluster, partition_of(1), tmp_path, "loop:200", "-", trainers=2, samplers=1, servers=2)
        job = RunningJob(cluster, plan)
        try:
            job.wait_for("beat", 8, seconds=120)
            own = {process.pid for process in psutil.Process().children(recursive=True)}
            found = [entry for entry in listening(cluster, cluster.machines[0]) if entry[2] in own]
            check(found, cluster.machines[0], plan.master_port)
        finally:
            error, _ = job.end()
    assert error is None
