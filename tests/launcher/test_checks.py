"""The checks of a machine before a job, each with a condition that makes it fail."""

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from preflight_support import ELSEWHERE, HERE, failed, only_failure

from tutorial_lib.launcher import checks
from tutorial_lib.launcher.backends import find_first_free_port
from tutorial_lib.launcher.findings import Finding, run_checks
from tutorial_lib.launcher.jobspec import JobSpec, Role

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")
EMPTY = JobSpec([HERE], [], "", "", 0)


def test_wrong_address_and_swapped_lines_are_found(monkeypatch):
    """L28. If the lines of ip_config.txt are swapped, the remedy names the line of this machine."""
    assert not failed([checks.check_address(EMPTY, 0)])
    finding = only_failure([checks.check_address(replace(EMPTY, machines=[ELSEWHERE, HERE]), 0)])
    assert "192.0.2.7 (line 1) does not belong to this machine; it has 127.0.0.1" in finding.detail
    assert "127.0.0.1, which is in line 2. Check the order of the lines in ip_config.txt." in finding.remedy
    monkeypatch.setattr(checks, "ipv4_addresses", lambda: {"lo": ["127.0.0.9", "127.0.0.1"]})
    finding = only_failure([checks.check_address(EMPTY, 0)])
    assert "is not the first address of its interface, and DGL sees only 127.0.0.9" in finding.detail
    assert "DGL treats this machine as machine 0" in finding.remedy


@pytest.mark.parametrize(("offset", "purpose"), [(1, "server 1"), (2, "the rendezvous of the ranks")])
def test_port_in_use_names_its_owner(offset, purpose):
    """L22. A port with a closed connection, which keeps it for a minute (TIME_WAIT), is free for DGL's servers."""
    first = find_first_free_port(3)
    servers = [Role("server", 2, ["true"], listens=True)]
    spec = replace(EMPTY, machines=[replace(HERE, port=first)], roles=servers, master_port=first + 2)
    with socket.create_server(("127.0.0.1", taken := first + offset)) as server:
        finding = only_failure([checks.check_ports(spec, 0)])
        assert finding.detail == f"{taken} ({purpose}) is taken by process {os.getpid()}"
        with socket.create_connection(("127.0.0.1", taken)):
            server.accept()[0].close()
    assert not failed([checks.check_ports(spec, 0)])
    above = replace(spec, machines=[replace(HERE, port=65535)])
    assert checks.check_ports(above, 0).detail == "65536 is above 65535"


def test_unusable_job_folders_are_found(tmp_path, monkeypatch):
    """L20. A full disk is found before the job."""
    spec = replace(EMPTY, log_dir=str(tmp_path / "a" / "b"))
    assert not failed(checks.check_folders(spec, 0))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("")
    detail = only_failure(checks.check_folders(spec, 0)).detail
    assert re.fullmatch(rf"cannot write to .*{tmp_path}/a .*: Not a directory", detail)
    finding = only_failure(checks.check_folders(replace(spec, cwd=f"{tmp_path}/gone"), 0))
    assert finding.detail == f"{tmp_path}/gone does not exist"


@pytest.mark.parametrize(
    ("error", "status"), [(psutil.AccessDenied(7), "skip"), (PermissionError("/proc"), "skip"), (KeyError(0), "fail")]
)
def test_a_check_that_raises_is_a_finding(error, status):
    """An item that this user cannot read may still be correct."""

    def broken(_job: JobSpec, _index: int) -> Iterator[Finding]:
        yield Finding("before", "ok", "")
        raise error

    found = run_checks([broken, lambda *_job: Finding("after", "ok", "")], EMPTY, 0)
    assert [(each.check, each.status) for each in found] == [("before", "ok"), ("broken", status), ("after", "ok")]
