"""The checks of a machine before a job, each with a cause that makes it fail."""

import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from preflight_support import ELSEWHERE, HERE, failed, the_fail

from tutorial_lib.launcher import checks
from tutorial_lib.launcher.backends import free_ports
from tutorial_lib.launcher.findings import Finding, run_checks
from tutorial_lib.launcher.jobspec import JobSpec, Role

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")
EMPTY = JobSpec([HERE], [], "", "", 0)


def test_an_address_of_another_machine_and_the_wrong_order():
    """L28. If the lines of ip_config.txt are swapped, the remedy names the line of this machine."""
    assert not failed([checks.check_address(EMPTY, 0)])
    finding = the_fail([checks.check_address(replace(EMPTY, machines=[ELSEWHERE]), 0)])
    assert "192.0.2.7 (line 1) does not belong to this machine; it has 127.0.0.1" in finding.detail
    assert "DGL takes this machine for machine 0" in finding.remedy
    finding = the_fail([checks.check_address(replace(EMPTY, machines=[ELSEWHERE, HERE]), 0)])
    assert "127.0.0.1, of line 2: are the lines of ip_config.txt in wrong order?" in finding.remedy


def test_an_address_that_dgl_does_not_see(monkeypatch):
    monkeypatch.setattr(checks, "ipv4_addresses", lambda: {"lo": ["127.0.0.9", "127.0.0.1"]})
    finding = the_fail([checks.check_address(EMPTY, 0)])
    assert "is not the first address of its interface, and DGL sees only 127.0.0.9" in finding.detail


@pytest.mark.parametrize("purpose", ["server 0", "server 1", "the meeting point of the ranks"])
def test_a_taken_port_and_its_owner(purpose):
    """L22. A port with a closed connection, which keeps it for a minute (TIME_WAIT), is free for DGL's servers."""
    first = free_ports(3)
    servers = [Role("server", 2, ["true"], listens=True)]
    plan = replace(EMPTY, machines=[replace(HERE, port=first)], roles=servers, master_port=first + 2)
    taken = first + ["server 0", "server 1", "the meeting point of the ranks"].index(purpose)
    with socket.create_server(("127.0.0.1", taken)) as server:
        finding = the_fail([checks.check_ports(plan, 0)])
        assert finding.detail == f"{taken} ({purpose}) is taken by process {os.getpid()}"
        with socket.create_connection(("127.0.0.1", taken)):
            server.accept()[0].close()
    assert not failed([checks.check_ports(plan, 0)])
    above = replace(plan, machines=[replace(HERE, port=65535)])
    assert checks.check_ports(above, 0).detail == "65536 is above 65535"


def test_the_folders_of_a_job(tmp_path, monkeypatch):
    """L20. A full disk is found before the job."""
    plan = replace(EMPTY, log_dir=str(tmp_path / "a" / "b"))
    assert not failed(checks.check_folders(plan, 0))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("")
    detail = the_fail(checks.check_folders(plan, 0)).detail
    assert re.fullmatch(rf"cannot write to .*{tmp_path}/a .*: Not a directory", detail)
    finding = the_fail(checks.check_folders(replace(plan, cwd=f"{tmp_path}/gone"), 0))
    assert finding.detail == f"there is no folder {tmp_path}/gone"


@pytest.mark.parametrize(
    ("error", "status"),
    [(psutil.AccessDenied(7), "skip"), (PermissionError("/proc is hidden"), "skip"), (KeyError("part-0"), "fail")],
)
def test_a_check_that_raises_is_a_finding(error, status):
    """Something that is hidden from this user can be in order. Other exceptions fail."""

    def broken(_job: JobSpec, _index: int) -> Iterator[Finding]:
        yield Finding("before", "ok", "")
        raise error

    before, finding, after = run_checks([broken, lambda *_job: Finding("after", "ok", "")], EMPTY, 0)
    assert (before.check, finding.check, finding.status, after.check) == ("before", "broken", status, "after")
    assert type(error).__name__ in finding.detail


def test_a_job_without_files_is_checked_without_them():
    found = {finding.check: finding.status for finding in checks.check_machine(EMPTY, 0)}
    assert found == {"address": "ok", "ports": "ok", "leftovers": "ok"}


def broken_check(_index: int, *, why: str) -> Finding:
    """A check of a job, which the agent finds by its name."""
    raise RuntimeError(why)


def test_a_check_of_the_job_that_raises_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "broken", sys.modules[__name__])
    finding = the_fail(checks.check_machine(replace(EMPTY, checks=[("broken:broken_check", {"why": "no disk"})]), 0))
    assert (finding.check, finding.detail) == ("broken_check", "the check ended with RuntimeError: no disk")
