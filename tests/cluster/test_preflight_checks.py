"""What a machine looks at in itself before a job, each check with what makes it fail."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from preflight_support import ELSEWHERE, EMPTY, HERE, failed, the_fail

from tutorial_lib.cluster import preflight_checks, preflight_parts
from tutorial_lib.cluster.findings import Finding, made
from tutorial_lib.cluster.local import free_ports
from tutorial_lib.cluster.plan import JobPlan
from tutorial_lib.cluster.shm import SHM, Leftovers, MarkedJob, job_marker, leftovers
from tutorial_lib.cluster.spec import write_ip_config

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_an_address_of_this_machine():
    assert not failed(preflight_checks.address_findings_here(EMPTY, 0))


def test_an_address_of_another_machine_and_the_wrong_order():
    plan = replace(EMPTY, machines=[ELSEWHERE])
    finding = the_fail(preflight_checks.address_findings_here(plan, 0))
    assert "192.0.2.7 (line 1) does not belong to this machine; it has 127.0.0.1" in finding.detail
    assert "machine 0, without a word" in finding.remedy
    finding = the_fail(preflight_checks.address_findings_here(replace(EMPTY, machines=[ELSEWHERE, HERE]), 0))
    assert "127.0.0.1, of line 2: are the lines of ip_config.txt in wrong order?" in finding.remedy


def test_an_address_that_dgl_does_not_see(monkeypatch):
    monkeypatch.setattr(preflight_checks, "ipv4_addresses", lambda: {"lo": ["127.0.0.9", "127.0.0.1"]})
    finding = the_fail(preflight_checks.address_findings_here(EMPTY, 0))
    assert "is not the first address of lo, and DGL sees the first one only: 127.0.0.9" in finding.detail


def test_addresses_are_those_of_dgl():
    from dgl.distributed.rpc_client import local_ip4_addr_list

    assert {addresses[0] for addresses in preflight_checks.ipv4_addresses().values()} == local_ip4_addr_list()


def test_interfaces(monkeypatch):
    state = namedtuple("State", "isup")
    monkeypatch.setattr(preflight_checks.psutil, "net_if_stats", lambda: {"lo": state(False), "eth0": state(True)})
    finding = the_fail(preflight_checks.address_findings_here(EMPTY, 0))
    assert (finding.detail, finding.remedy) == ("lo is down", "ip link set lo up")


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_taken_port_and_its_owner(offset):
    """Port of server 0, of server 1, and of the trainers' meeting point."""
    first = free_ports(3)
    plan = replace(EMPTY, machines=[replace(HERE, port=first)], servers=2, master_port=first + 2)
    assert not failed(preflight_checks.port_findings(plan, 0))
    code = "import socket, time; s = socket.create_server(('127.0.0.1', %d)); print(flush=True); time.sleep(99)"
    holder = subprocess.Popen([sys.executable, "-c", code % (first + offset)], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        finding = the_fail(preflight_checks.port_findings(plan, 0))
        purpose = ["server 0", "server 1", "the trainers' meeting point"][offset]
        assert finding.detail.startswith(f"{first + offset} ({purpose}) is taken by process {holder.pid} (")
    finally:
        holder.kill()
        holder.communicate()


def test_a_port_that_was_used_a_moment_ago_is_free():
    """A closed connection keeps its port for a minute (TIME_WAIT); DGL's servers take it again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert preflight_checks.port_finding("127.0.0.1", port, "server 0") is None


def test_ports_that_cannot_be(monkeypatch):
    assert "above 65535" in preflight_checks.port_finding("127.0.0.1", 65536, "server 1").detail
    assert preflight_checks.port_finding("192.0.2.7", 30050, "server 0").status == "skip"


def test_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4096))
    assert preflight_checks.open_files(EMPTY).status == "ok"
    many = replace(EMPTY, machines=[HERE] * 16, trainers=4, samplers=2)
    finding = preflight_checks.open_files(many)
    assert finding.detail == "limit 1024, needed about 1792"
    assert finding.remedy.startswith("ulimit -n 1792")
    assert "administrator" not in finding.remedy
    servers = replace(EMPTY, machines=[HERE] * 4, servers=100)  # 4 clients, each of which connects to 400 servers
    assert preflight_checks.open_files(servers).detail == "limit 1024, needed about 3456"
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 1024))
    assert "must first raise the hard limit, 1024" in preflight_checks.open_files(many).remedy
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    finding = preflight_checks.open_files(many)
    assert (finding.status, finding.detail) == ("ok", "limit none, needed about 1792")


def test_shared_memory_that_is_too_small(damaged, monkeypatch):
    plan = damaged()
    assert preflight_checks.shared_memory(plan, 0).status == "ok"
    small = SimpleNamespace(free=4096000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: small)
    finding = preflight_checks.shared_memory(plan, 0)
    assert finding.status == "fail"
    assert re.fullmatch(r"4 MB free; the servers would put about 1\d MB there", finding.detail)
    assert "docker: --shm-size=1g" in finding.remedy
    trainers = preflight_checks.shared_memory(replace(EMPTY, shm_of_trainers=1 << 30), 0)  # as the doctor asks
    assert trainers.detail == "4 MB free; a small job would put about 1074 MB there"
    assert preflight_checks.shared_memory(EMPTY, 0).status == "skip"


def test_a_second_format_needs_more_shared_memory(damaged):
    plan = damaged()
    one, two = (preflight_parts.shm_bytes_needed(replace(plan, graph_format=f), 0) for f in ["csc", "csc,coo"])
    assert 1.3 * one < two < 1.65 * one


def test_leftovers_of_each_kind():
    found = Leftovers(live=[MarkedJob("m", 77, ("a",))], foreign=["b-kvdata-", "c-kvdata-"], users={"b-kvdata-": 88})
    live, used, idle = preflight_checks.leftover_problems(found)
    assert "another job is running on this machine (process 77)" in live.detail
    assert used.detail.endswith("uses /dev/shm: process 88")
    assert idle.remedy.endswith(f"rm '{SHM}/c-kvdata-'")
    assert {f.status for f in (live, used, idle)} == {"fail"}


def test_a_running_job_is_refused():
    with job_marker("g", set()):
        finding = the_fail(preflight_checks.segment_findings())
    assert f"another job is running on this machine (process {os.getpid()})" in finding.detail


def test_what_a_killed_job_left_is_removed():
    code = (
        "import os, signal; from tutorial_lib.cluster.shm import SHM, job_marker\n"
        "with job_marker('g', set()):\n"
        "    (SHM / 'node~_N~preflight-kvdata-').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60)
    (finding,) = preflight_checks.segment_findings()
    assert (finding.status, finding.detail) == ("ok", "removed 1 files that a killed job left in /dev/shm")
    (finding,) = preflight_checks.segment_findings()
    assert finding.detail == "no files of another job in /dev/shm"


@pytest.mark.parametrize(
    ("seconds", "status", "detail"),
    [
        (3.0, "ok", "removed 1 files that a killed job left in /dev/shm"),
        (0.0, "fail", "1 files of a job that was killed (process {}) are in /dev/shm"),
    ],
)
def test_processes_of_a_killed_job_that_are_about_to_end(tmp_path, monkeypatch, seconds, status, detail):
    """A server is killed a moment after its agent; until then its files are in use. It ends while we clean up, in time
    or when we wait no more: what is still there then is not passed over.
    """
    told = tmp_path / "server"
    code = (
        "import mmap, os, signal, subprocess, sys; from tutorial_lib.cluster.shm import SHM, job_marker\n"
        "code = 'import mmap, sys, time; f = open(sys.argv[1], \"r+b\"); m = mmap.mmap(f.fileno(), 0);'\n"
        "code += 'print(flush=True); time.sleep(60)'\n"
        "with job_marker('g', set()):\n"
        "    path = SHM / 'node~_N~preflight-kvdata-'; path.write_bytes(b'x' * 4096)\n"
        "    server = subprocess.Popen([sys.executable, '-c', code, str(path)], stdout=subprocess.PIPE)\n"
        "    open(sys.argv[1], 'w').write(str(server.pid))\n"
        "    server.stdout.readline(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(told)], timeout=60)
    (job,) = leftovers().dead
    assert len(job.in_use) == 1
    monkeypatch.setattr(preflight_checks, "DYING_SECONDS", seconds)
    clean, server = preflight_checks.clean_leftovers, psutil.Process(int(told.read_text()))

    def clean_and_end() -> list[str]:
        removed = clean()
        if server.is_running():
            server.kill()
            psutil.wait_procs([server], 5)
        return removed

    monkeypatch.setattr(preflight_checks, "clean_leftovers", clean_and_end)
    (finding,) = preflight_checks.segment_findings()
    assert (finding.status, finding.detail) == (status, detail.format(job.pid))
    assert clean() == ([] if status == "ok" else ["node~_N~preflight-kvdata-"])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python3", "train.py", "--x"], None),
        (["./run.sh"], None),
        ([sys.executable, "-m", "anything"], None),
        (["no-such-program"], "there is no program 'no-such-program'"),
        (["./train.py"], "there is no program './train.py'"),  # not executable
        (["python3", "other.py"], "there is no script"),
    ],
)
def test_the_program_and_its_script(tmp_path, command, words):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    findings = list(preflight_checks.command_finding(replace(EMPTY, command=command, cwd=str(tmp_path)), 0))
    assert (words in the_fail(findings).detail) if words else not failed(findings)


def test_a_working_directory_that_does_not_exist(tmp_path):
    plan = replace(EMPTY, command=["true"], cwd=str(tmp_path / "none"))
    assert "none does not exist" in the_fail(preflight_checks.command_finding(plan, 0)).detail


def test_the_address_file_of_a_machine(tmp_path):
    plan = replace(EMPTY, machines=[HERE, ELSEWHERE], ip_config=str(tmp_path / "ip_config.txt"))
    assert "cannot read" in the_fail(preflight_checks.ip_config_finding(plan)).detail
    write_ip_config(tmp_path / "ip_config.txt", [HERE, ELSEWHERE])
    assert [f.status for f in preflight_checks.ip_config_finding(plan)] == ["ok"]
    write_ip_config(tmp_path / "ip_config.txt", [ELSEWHERE, HERE])
    finding = the_fail(preflight_checks.ip_config_finding(plan))
    assert finding.remedy.endswith("it should list 127.0.0.1:30050, 192.0.2.7:30050")


def test_the_log_folder(tmp_path, monkeypatch):
    plan = replace(EMPTY, log_dir=str(tmp_path / "a" / "b"))
    assert [f.status for f in preflight_checks.log_folder(plan, 0)] == ["ok"]
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").write_text("")
    assert "a is a file" in the_fail(preflight_checks.log_folder(plan, 0)).detail
    monkeypatch.setattr(os, "access", lambda *_args: False)  # root may write everything
    (tmp_path / "a").unlink()
    assert "is not writable" in the_fail(preflight_checks.log_folder(plan, 0)).detail


@pytest.mark.parametrize(
    ("error", "status"),
    [(psutil.AccessDenied(7), "skip"), (PermissionError("/proc is hidden"), "skip"), (KeyError("part-0"), "fail")],
)
def test_a_check_that_breaks_is_seen(error, status):
    """What this machine hides may be in order; an exception that nobody has thought of is not passed over."""

    def broken(_plan: JobPlan, _index: int) -> Iterator[Finding]:
        yield Finding("before", "ok", "")
        raise error

    before, finding, after = made([broken, lambda *_job: Finding("after", "ok", "")], EMPTY, 0)
    assert (before.check, finding.check, finding.status, after.check) == ("before", "broken", status, "after")
    assert type(error).__name__ in finding.detail
    if status == "fail":
        assert "test_preflight_checks.py:" in finding.detail
        assert finding.remedy


def test_what_a_plan_does_not_name_is_not_looked_at():
    checks = {finding.check: finding.status for finding in made(preflight_checks.CHECKS, EMPTY, 0)}
    assert not {"command", "ip_config", "log folder"} & set(checks)
    assert (checks["partition"], checks["/dev/shm"]) == ("skip", "skip")


def test_the_digest_of_the_package(tmp_path):
    (tmp_path / "a.py").write_text("1")
    one = preflight_checks.package_digest(tmp_path)
    (tmp_path / "b.txt").write_text("not a module")
    assert preflight_checks.package_digest(tmp_path) == one
    (tmp_path / "a.py").write_text("2")
    assert preflight_checks.package_digest(tmp_path) != one
