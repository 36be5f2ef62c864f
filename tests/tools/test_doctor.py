"""The doctor: each check with what makes it fail, and the machines that it looks at."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import tutorial
from preflight_support import failed, the_fail

from tutorial_lib.cluster.checks import open_files, port_findings, segment_findings, shared_memory
from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable
from tutorial_lib.cluster.shm import SHM
from tutorial_lib.errors import InputError
from tutorial_lib.job.layout import Layout, RealMachines
from tutorial_lib.tools import doctor
from tutorial_lib.tools.doctor import SMALL_JOB, Finding, examine, examine_machines

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """``installed(name, version)``: a folder of a package, as far as its metadata goes, before all others."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, version: str) -> Path:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (tmp_path / name).mkdir()
        return tmp_path / name

    return install


# --- software


def test_this_environment_is_fit():
    findings = examine(quick=True)
    assert not failed(f for f in findings if f.check not in ("/dev/shm", "leftovers"))
    checks = [f.check for f in findings]
    assert checks[:7] == ["python", "dgl", "torch", "torchdata", "numpy", "stack", "graphbolt"]
    assert [f.status for f in findings if f.check == "import dgl"] == ["skip"]
    assert repr(findings).splitlines()[0].startswith("[ok]   python: 3.")


@pytest.mark.parametrize(("version", "status"), [((3, 10, 1), "ok"), ((3, 13, 0), "ok"), ((3, 14, 0), "fail")])
def test_python(monkeypatch, version, status):
    monkeypatch.setattr(sys, "version_info", version)
    assert doctor.python().status == status


def test_wrong_and_missing_packages(installed, monkeypatch):
    installed("torch", "2.2.1")
    installed("numpy", "2.4.0")
    monkeypatch.setitem(doctor.EXPECTED, "no-such-package", "1")
    found = {finding.check: finding for finding in doctor.packages()}
    assert (found["numpy"].status, found["numpy"].detail) == ("fail", "2.4.0")
    assert "Expected 1.*" in found["numpy"].remedy
    assert (found["no-such-package"].status, found["no-such-package"].detail) == ("fail", "not installed")


def test_a_torch_without_graphbolt(installed):
    installed("torch", "2.9.0+cpu")
    finding = doctor.graphbolt()
    assert finding.status == "skip"
    assert "no library for torch 2.9.0 (there is one for 2.0.0, " in finding.detail


def test_a_torchdata_without_datapipes(installed):
    installed("torch", "2.2.1")
    installed("torchdata", "0.11.0")
    finding = doctor.graphbolt()
    assert (finding.status, finding.detail.split(":")[0]) == ("skip", "torchdata has no datapipes")
    assert [f.check for f in failed(doctor.packages()) if f.check == "torchdata"] == ["torchdata"]


@pytest.mark.parametrize(
    ("versions", "stack", "bad"),
    [
        ({"torch": "2.2.1+cpu", "numpy": "1.26.4", "torchdata": "0.7.1"}, ("ok", "default (torch 2.2.1)"), []),
        (
            {"torch": "2.13.0", "numpy": "2.4.6", "torchdata": "0.11.0"},
            ("ok", "modern (torch 2.13.0, without GraphBolt)"),
            [],
        ),
        ({"torch": "2.13.0", "numpy": "1.26.4", "torchdata": "0.11.0"}, ("ok", "modern"), ["numpy"]),
        ({"torch": "2.2.10", "numpy": "2.4.6", "torchdata": "0.11.0"}, ("skip", "torch 2.2.10, without"), ["numpy"]),
        ({"torch": "2.9.0", "numpy": "2.4.6", "torchdata": "0.11.0"}, ("skip", "torch 2.9.0, without"), []),
        ({"torch": "1.13.1", "numpy": "1.26.4", "torchdata": "0.7.1"}, ("skip", "torch 1.13.1, without"), ["torch"]),
    ],
)
def test_stacks(installed, versions, stack, bad):
    """A tested stack has no fail; of others, what is known not to work fails."""
    for name, version in versions.items():
        installed(name, version)
    found = [*doctor.packages(), doctor.graphbolt()]
    finding = next(f for f in found if f.check == "stack")
    assert finding.status == stack[0]
    assert finding.detail.startswith(stack[1])
    assert [f.check for f in failed(found)] == bad


def test_packages_that_dgl_forgets_to_ask_for(monkeypatch):
    monkeypatch.setitem(doctor.UNDECLARED, "no_such_module", "no-such-package")
    assert the_fail([doctor.undeclared()]).detail == "no-such-package not installed"


def test_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("DGL_")]:
        monkeypatch.delenv(name)
    assert doctor.variables().detail == "no DGL_* is set"
    monkeypatch.setenv("DGL_NUM_CLIENT", "4")
    assert doctor.variables().detail == "DGL_NUM_CLIENT set in your shell; a job sets its own"
    monkeypatch.setenv("DGL_DIST_MODE", "distributed")
    assert the_fail([doctor.variables()]).remedy.endswith("unset DGL_DIST_MODE DGL_ROLE")
    monkeypatch.setenv("DGLBACKEND", "mxnet")
    assert the_fail([doctor.variables()]).remedy == "unset DGLBACKEND"


def test_gpus(monkeypatch, installed):
    monkeypatch.setattr(doctor, "gpu_devices", list)
    assert doctor.gpus().status == "skip"
    monkeypatch.setattr(doctor, "gpu_devices", lambda: ["nvidia0", "nvidia1"])
    finding = doctor.gpus()  # of this environment
    assert finding.status == "skip"
    assert re.match(r"2 GPUs, torch for CUDA 1[23]\.\d, but PyPI's dgl is a CPU build", finding.detail)
    torch = installed("torch", "2.2.1")
    installed("dgl", "2.1.0+cu121")
    (torch / "version.py").write_text("cuda: Optional[str] = None\n")
    assert "a build without CUDA" in the_fail([doctor.gpus()]).detail
    (torch / "version.py").write_text("cuda: Optional[str] = '12.1'\n")
    assert doctor.gpus().status == "ok"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("raise ImportError('no dgl here')", "ImportError: no dgl here"),
        ("import os; os.kill(os.getpid(), 11)", "killed by signal 11"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import time; time.sleep(100)", "did not end within 0.5 s"),
    ],
)
def test_an_import_that_fails(code, detail):
    assert the_fail([doctor.import_dgl(code, 0.5 if "sleep" in code else 30)]).detail == detail


def test_the_import_really_works():
    assert doctor.import_dgl().status == "ok"


# --- this computer


def test_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 2048))
    assert the_fail([open_files(SMALL_JOB)]).detail == "limit 256, needed about 1024"


def test_shared_memory(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=64 << 20))  # docker's
    finding = the_fail([shared_memory(SMALL_JOB, 0)])
    assert finding.detail == "67 MB free; a small job would put about 1074 MB there"
    assert "docker: --shm-size=3g" in finding.remedy


def test_foreign_segments(emulation):
    path = SHM / "node~_N~test-doctor-kvdata-"
    path.write_bytes(b"x")
    try:
        finding = the_fail(segment_findings())
        assert finding.remedy.endswith(f"rm '{path}'")
        found = {f.check: f for f in examine(emulate=1, quick=True) if not f.machine}
        assert found["leftovers"].status == "skip"
        assert found["leftovers"].detail.endswith("emulated machines have their own")
    finally:
        path.unlink()


def test_taken_ports(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        plan = replace(SMALL_JOB, master_port=server.getsockname()[1])
        taken = f"(the trainers' meeting point) is taken by process {os.getpid()}"
        assert taken in the_fail(port_findings(plan, 0)).detail
        monkeypatch.setattr(doctor, "SMALL_JOB", plan)
        (finding,) = [f for f in examine(quick=True) if f.check == "ports"]
    assert (finding.status, taken in finding.detail) == ("skip", True)
    assert "matters only where this computer is in an ip_config.txt" in finding.detail


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.1.1", "which no other machine reaches; gloo is told the interface instead"),
        ("10.1.2.3", "is 10.1.2.3"),
        (None, "has no address"),
    ],
)
def test_host_name(monkeypatch, address, words):
    def resolve(_name):
        if address is None:
            raise socket.gaierror(-2, "Name or service not known")
        return address

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    finding = doctor.host_name()
    assert finding.status == "ok"
    assert words in finding.detail


def test_a_name_service_that_does_not_answer(monkeypatch):
    import time

    monkeypatch.setattr(doctor, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: time.sleep(0.5) or "10.1.2.3")
    assert doctor.host_name().status == "skip"


def test_no_ssh_client(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert doctor.ssh_client().status == "skip"


def test_a_check_that_breaks(monkeypatch):
    def hidden():
        raise PermissionError("/proc is hidden")

    def broken():
        raise RuntimeError("oh")

    monkeypatch.setattr(doctor, "SOFTWARE", [hidden, broken])
    first, second = examine(quick=True)[:2]
    assert (first.check, first.status) == ("hidden", "skip")
    assert (second.check, second.status) == ("broken", "fail")
    assert second.detail == "the check ended with RuntimeError: oh"


# --- machines


def test_emulated_machines_check_themselves(emulation, partition_of):
    findings = examine(emulate=2, part_config=partition_of(2).config, quick=True)
    of_second = {f.check: f.status for f in findings if f.machine == "machine-1"}
    assert set(of_second.values()) == {"ok"}
    assert {"address", "ports", "partition", "clock"} <= set(of_second)
    assert "command" not in of_second
    without = examine(emulate=1, quick=True)
    assert {f.status for f in without if f.machine and f.check == "partition"} == {"skip"}


def test_a_host_without_namespaces(monkeypatch):
    def refused(_cluster):
        raise EmulationUnavailable("this host does not allow emulated machines: create a user namespace", "sysctl")

    monkeypatch.setattr(EmulatedCluster, "__enter__", refused)
    (finding,) = examine_machines(Layout(2))
    assert (finding.check, finding.status, finding.remedy) == ("emulated machines", "fail", "sysctl")


@pytest.fixture
def ssh_that(tmp_path, monkeypatch):
    """``ssh_that(script)``: an ssh client that runs a shell script; ``$last`` is the remote command."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(script: str) -> None:
        (folder / "ssh").write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
        (folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    return make


def test_real_machines(ssh_that, partition_of, tmp_path):
    """This computer, as one that is reached over ssh."""
    ssh_that('echo "Welcome!"; exec sh -c "$last"')
    (tmp_path / "ip_config.txt").write_text("127.0.0.1\n")
    real = RealMachines(tmp_path / "ip_config.txt")
    findings = examine(real=real, part_config=partition_of(1).config, quick=True)
    found = {f.check: f.status for f in findings if f.machine}
    assert {found[check] for check in ("address", "partition", "clock")} == {"ok"}
    assert {f.status for f in findings if f.check in ("addresses", "ssh login", "versions")} == {"ok"}


def over_ssh(folder: Path, **options) -> list[Finding]:
    return examine_machines(Layout(None, real=RealMachines(folder / "ip_config.txt", **options)))


def test_a_login_that_is_refused(ssh_that, tmp_path):
    ssh_that("echo 'me@127.0.0.1: Permission denied (publickey).' >&2; exit 255")
    (tmp_path / "ip_config.txt").write_text("127.0.0.1\n")
    finding = the_fail(over_ssh(tmp_path, ssh_username="me"))
    assert finding.check == "ssh login"
    assert "Permission denied" in finding.detail


def test_public_addresses_are_not_contacted(ssh_that, tmp_path):
    ssh_that(f"touch {tmp_path}/contacted; exit 255")
    (tmp_path / "ip_config.txt").write_text("10.0.0.1\n8.8.8.8\n")
    finding = the_fail(over_ssh(tmp_path))
    assert (finding.check, finding.machine) == ("addresses", "machine-1")
    assert not (tmp_path / "contacted").exists()
    assert the_fail(over_ssh(tmp_path, allow_public=True)).check == "ssh login"
    assert (tmp_path / "contacted").exists()


def test_two_kinds_of_machines_at_once(tmp_path):
    with pytest.raises(InputError, match="choose one of"):
        examine(emulate=1, real=RealMachines(tmp_path / "ip_config.txt"))


def test_without_machines_a_partition_is_not_checked(partition_of):
    finding = examine(part_config=partition_of(2).config, quick=True)[-1]
    assert (finding.check, finding.status) == ("partition", "skip")


# --- the command


def test_the_command_fails_when_a_check_does(emulation, partition_of):
    done = tutorial("doctor", "--emulate", "1", "--part_config", str(partition_of(2).config), "--json", code=1)
    findings = [Finding(**values) for values in json.loads(done.stdout)]
    assert "has 2 parts for 1 machines" in the_fail(f for f in findings if f.check == "partition").detail
    assert [f.status for f in findings if f.check == "import dgl"] == ["ok"]


def test_the_command_with_a_bad_address_file(tmp_path, run_here):
    (tmp_path / "ip_config.txt").write_text("worker-1\n")
    done = run_here("doctor", "--ip_config", "ip_config.txt")
    assert done.returncode == 2
    assert "line 1: 'worker-1' is not an IPv4 address" in done.stderr


def test_findings_show_as_lines_in_a_notebook():
    from IPython.lib.pretty import pretty

    findings = examine(quick=True)
    assert pretty(findings) == "\n".join(str(finding) for finding in findings)
