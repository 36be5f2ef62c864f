"""``doctor``: each check with the problem that it reports, and the examined machines."""

import json
import os

import pytest
from commands import tutorial
from preflight_support import only_failure

from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, SshMachines
from tutorial_lib.launcher.findings import Finding
from tutorial_lib.tools import before_job
from tutorial_lib.tools.before_job import examine_machines

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(
    ("code", "status", "detail"),
    [
        ("raise ImportError('no dgl here')", "fail", "ImportError: no dgl here"),
        ("import os; os.kill(os.getpid(), 9)", "fail", "killed by signal 9"),
        ("import time; time.sleep(100)", "fail", "did not end within 2 s"),
        ("print('note'); print('no library')", "ok", "no library"),
        (before_job.IMPORT_CODE, "ok", "dgl 2.1.0 works with torch "),
    ],
)
def test_trial_imports(code, status, detail):
    finding = before_job.check_import(code, 2 if "sleep" in code else 60)
    assert finding.status == status
    assert finding.detail.startswith(detail)


def test_doctor_checks_emulated_machines(emulation, partition_of):
    findings = examine_machines(Layout(2), partition_of(2).config)
    found = {finding.check: finding.status for finding in findings if finding.machine == "machine-1"}
    assert set(found.values()) == {"ok"}
    assert {"address", "ports", "partition", "clock"} <= set(found)


@pytest.fixture
def over_ssh(tmp_path, monkeypatch):
    """``over_ssh(script, addresses)``: findings with an ssh client that is a shell script."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def look(script: str, addresses: str, **options) -> list[Finding]:
        (config := tmp_path / "ip_config.txt").write_text(addresses)
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh").chmod(0o755)
        return examine_machines(Layout(None, ssh_machines=SshMachines(config, **options)), None)

    return look


def test_public_addresses_are_not_contacted(over_ssh, tmp_path):
    contact = f"touch {tmp_path}/contacted; exit 255"
    with pytest.raises(InputError, match=r"machine-1: 8\.8\.8\.8 is a public address"):
        over_ssh(contact, "10.0.0.1\n8.8.8.8\n")
    assert not (tmp_path / "contacted").exists()
    assert only_failure(over_ssh(contact, "10.0.0.1\n8.8.8.8\n", allow_public=True)).check == "machines"
    assert (tmp_path / "contacted").exists()


def test_doctor_fails_if_a_check_fails(emulation, partition_of):
    done = tutorial("doctor", "--emulate", "1", "--part_config", str(partition_of(2).config), "--json", code=1)
    findings = [Finding(**values) for values in json.loads(done.stdout)]
    assert "has 2 parts for 1 machines" in only_failure(f for f in findings if f.check == "partition").detail
    assert {f.status for f in findings if f.check == "import dgl"} == {"ok"}


def test_wrong_arguments_of_the_command(tmp_path, run_here):
    (tmp_path / "ip_config.txt").write_text("worker-1\n")
    for words, message in ([], "'worker-1' is not an IPv4 address"), (["--emulate", "1"], "choose one of"):
        done = run_here("doctor", "--ip_config", "ip_config.txt", *words)
        assert done.returncode == 2
        assert message in done.stderr
