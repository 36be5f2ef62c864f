"""What the coordinator compares before a job, and the whole preflight on emulated machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from fault_support import plan_of
from preflight_support import EMPTY, HERE, failed, the_fail

from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.launcher import preflight
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.local import LocalBackend
from tutorial_lib.launcher.findings import Finding, Findings
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.preflight import PreflightFailed, examine_cluster, require

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def environment(**changes: str) -> dict[str, str]:
    base = {"python": "3.11.7", "torch": "2.2.1", "dgl": "2.1.0", "tutorial_lib": "0.1.0 (text abc)"}
    return {**base, "executable": "/usr/bin/python3", **changes}


def test_versions_that_differ():
    same = {"machine-0": environment(), "machine-1": environment()}
    (finding,) = preflight.version_findings(same, environment())
    assert finding.detail == "python 3.11.7, torch 2.2.1, dgl 2.1.0, tutorial_lib 0.1.0 (text abc) on 2 machines"
    other = {"machine-0": environment(), "machine-1": environment(dgl="2.0.0")}
    (finding,) = preflight.version_findings(other, environment())
    assert finding.sentence == "machine-1: versions: dgl is 2.0.0, machine-0 has 2.1.0"
    # The machines may have another torch than the coordinator, but not another tutorial_lib.
    (finding,) = preflight.version_findings(same, environment(torch="1.0"))
    assert finding.status == "ok"
    findings = preflight.version_findings(same, environment(tutorial_lib="0.1.0 (text def)"))
    assert [f.machine for f in findings] == ["machine-0", "machine-1"]
    assert findings[0].detail == "tutorial_lib is 0.1.0 (text abc), the coordinator has 0.1.0 (text def)"
    missing = {"machine-0": environment(dgl="not installed"), "machine-1": environment(dgl="not installed")}
    assert len(failed(preflight.version_findings(missing, environment()))) == 2


@pytest.mark.parametrize(
    ("ahead", "status", "words"),
    [
        (0.1, "ok", "agrees with the coordinator's, as far as can be told: to 0.20 s"),
        (0.3, "ok", "0.30 s ahead of the coordinator's (give or take 0.20 s)"),
        (-7.0, "fail", "7.00 s behind the coordinator's (give or take 0.20 s)"),
        (60.0, "fail", "60.00 s ahead of the coordinator's (give or take 0.20 s)"),
    ],
)
def test_clocks(ahead, status, words):
    """0.2 s to get there, 3 s of work, 0.2 s back."""
    finding = preflight.clock_finding("machine-1", 100.0, 100.2 + ahead, 103.2 + ahead, 103.4)
    assert (finding.status, finding.machine) == (status, "machine-1")
    assert finding.detail == words


def test_public_addresses():
    private = [Machine(a, a) for a in ("10.0.0.1", "172.16.3.4", "127.0.0.1", "169.254.1.1")]
    (finding,) = preflight.address_findings(private)
    assert (finding.status, finding.detail) == ("ok", "4 private ones")
    public = [*private, Machine("e", "8.8.8.8")]
    finding = the_fail(preflight.address_findings(public))
    assert finding.machine == "e"
    assert "--allow_public_addresses" in finding.remedy
    (finding,) = preflight.address_findings(public, allow_public=True)
    assert finding.status == "ok"


def test_client_counts(monkeypatch):
    plan = replace(EMPTY, machines=[HERE] * 2, trainers=3, samplers=1, part_config="p.json")
    monkeypatch.setenv("DGL_NUM_CLIENT", "99")  # of the shell: the job sets its own
    finding = preflight.client_finding(plan)
    assert (finding.status, finding.detail) == ("ok", "12 = 2 machines x 3 trainers x (1 + 1 samplers)")
    assert preflight.client_finding(replace(plan, env={"DGL_GRAPH_FORMAT": "coo"})).status == "ok"
    finding = the_fail([preflight.client_finding(replace(plan, env={"DGL_NUM_CLIENT": "2"}))])
    assert finding.detail == "DGL_NUM_CLIENT is set to '2', the job needs '12'"


def test_findings_are_shown_as_lines():
    findings = Findings([Finding("a", "ok", "fine"), Finding("b", "fail", "bad", "one\ntwo", "machine-1")])
    lines = "[ok]   a: fine\n[fail] machine-1: b: bad\n       -> one\n       -> two"
    assert repr(findings) == lines


@pytest.fixture
def two(emulation):
    with EmulatedBackend(2) as cluster:
        yield cluster


def test_two_machines_that_are_fit(two, partition_of, tmp_path):
    plan = plan_of(two, partition_of(2), tmp_path)
    start = time.monotonic()
    findings = require(two, plan)
    assert time.monotonic() - start < 60
    assert {f.status for f in findings} == {"ok"}, findings
    for name in ("machine-0", "machine-1"):
        checks = {f.check for f in findings if f.machine == name}
        assert checks >= {"address", "ports", "leftovers", "/dev/shm", "partition", "command", "log folder", "clock"}
    assert not (tmp_path / "logs").exists()


def test_one_machine_without_namespaces(partition_of, tmp_path):
    with LocalBackend() as cluster:
        findings = require(cluster, plan_of(cluster, partition_of(1), tmp_path))
    assert {f.status for f in findings} == {"ok"}, findings


def test_a_foreign_segment_on_one_machine(two, partition_of, tmp_path):
    code = "open('/dev/shm/node~_N~feat-kvdata-', 'w').write('x')"
    two.popen(two.machines[1], [sys.executable, "-c", code]).wait()
    finding = the_fail(examine_cluster(two, plan_of(two, partition_of(2), tmp_path)))
    assert finding.machine == "machine-1"
    assert finding.remedy.endswith("rm '/dev/shm/node~_N~feat-kvdata-'")


class Odd:
    """A cluster on which one machine runs something else instead of the preflight."""

    def __init__(self, cluster, instead: list[str]) -> None:
        self.cluster, self.instead = cluster, instead

    def popen(self, machine: Machine, argv, **kwargs) -> subprocess.Popen:
        return self.cluster.popen(machine, self.instead if machine.name == "machine-1" else argv, **kwargs)


@pytest.mark.parametrize(
    ("instead", "words", "seconds"),
    [
        ([sys.executable, "-I", "-S", "-m", "no_such_module"], "exit code 1: .*No module named no_such_module", 10),
        (["no-such-python"], "exit code 127: cannot start 'no-such-python'", 10),
        (["sleep", "100"], "no answer within 2 s", 5),
        (["true"], "exit code 0: no output", 10),
        (["echo", "[1]"], "exit code 0: no output", 10),
    ],
)
def test_a_machine_that_does_not_answer(two, partition_of, tmp_path, instead, words, seconds):
    start = time.monotonic()
    finding = the_fail(examine_cluster(Odd(two, instead), plan_of(two, partition_of(2), tmp_path), timeout=2))
    assert time.monotonic() - start < seconds
    assert (finding.machine, finding.check) == ("machine-1", "preflight")
    assert re.search(words, finding.detail)


def test_a_transport_that_cannot_start(two, partition_of, tmp_path):
    class Broken:
        def popen(self, *_args, **_kwargs):
            raise FileNotFoundError(2, "No such file or directory", "ssh")

    findings = examine_cluster(Broken(), plan_of(two, partition_of(2), tmp_path))
    assert [f.machine for f in failed(findings)] == ["machine-0", "machine-1"]
    assert "No such file or directory" in findings[0].detail


def test_a_plan_of_another_version(two, partition_of, tmp_path):
    """Its fields are unknown there; the versions, which are told all the same, say why."""

    class Newer(JobPlan):
        def to_json(self) -> str:
            return json.dumps({**json.loads(super().to_json()), "field_of_the_future": 1})

    plan = plan_of(two, partition_of(2), tmp_path)
    findings = examine_cluster(two, Newer(**vars(plan)))
    assert [f.check for f in failed(findings)] == ["plan", "plan"]
    assert "field_of_the_future" in failed(findings)[0].detail
    assert any(f.check == "versions" for f in findings)


def test_public_machines_are_not_even_contacted():
    class Untouchable:
        def popen(self, *_args, **_kwargs):
            raise AssertionError("was contacted")

    with pytest.raises(PreflightFailed, match=r"machine-0: addresses: 8\.8\.8\.8 is a public address"):
        require(Untouchable(), replace(EMPTY, machines=[Machine("machine-0", "8.8.8.8")]))


def test_the_program_is_light():
    code = (
        "import sys, tutorial_lib.launcher.preflight, tutorial_lib.launcher.checks\n"
        "assert not {'torch', 'dgl', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
