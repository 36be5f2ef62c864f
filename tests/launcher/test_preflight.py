"""What the coordinator compares before a job, and the checks of emulated machines."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from fault_support import examine, plan_of
from preflight_support import EMPTY, HERE, failed, the_fail

from tutorial_lib.errors import InputError
from tutorial_lib.job.ip_config import check_private
from tutorial_lib.launcher import agents, environment
from tutorial_lib.launcher.agents import version_findings
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.backends.local import LocalBackend
from tutorial_lib.launcher.jobspec import Machine

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")
VERSIONS = {"python": "3.11.7", "torch": "2.2.1", "dgl": "2.1.0"}


def test_versions_that_differ():
    (finding,) = version_findings({"machine-0": VERSIONS, "machine-1": VERSIONS})
    assert finding.detail == "python 3.11.7, torch 2.2.1, dgl 2.1.0 on 2 machines"
    (finding,) = version_findings({"machine-0": VERSIONS, "machine-1": {**VERSIONS, "dgl": "2.0.0"}})
    assert finding.sentence == "machine-1: versions: dgl is 2.0.0, machine-0 has 2.1.0"
    missing = {**VERSIONS, "dgl": "not installed for /usr/bin/python3"}
    (finding,) = version_findings({"machine-0": missing, "machine-1": missing})
    assert finding.sentence == "machine-0: versions: dgl is not installed for /usr/bin/python3"


def test_public_addresses():
    private = [Machine(a, a) for a in ("10.0.0.1", "172.16.3.4", "127.0.0.1", "169.254.1.1")]
    check_private(private)
    with pytest.raises(InputError, match=r"e: 8\.8\.8\.8 is a public address") as caught:
        check_private([*private, Machine("e", "8.8.8.8")])
    assert "--allow_public_addresses" in caught.value.remedy


def test_client_counts(monkeypatch):
    plan = replace(EMPTY, machines=[HERE] * 2, trainers=3, samplers=1, part_config="p.json")
    monkeypatch.setenv("DGL_NUM_CLIENT", "99")  # of the shell: the job sets its own
    assert plan.to_spec().env["DGL_NUM_CLIENT"] == "12"
    assert replace(plan, env={"DGL_GRAPH_FORMAT": "coo"}).to_spec().user_env == {"DGL_GRAPH_FORMAT": "coo"}
    with pytest.raises(InputError, match="DGL_NUM_CLIENT is set to '2', the job needs '12'"):
        replace(plan, env={"DGL_NUM_CLIENT": "2"}).to_spec()


@pytest.fixture
def two(emulation):
    with EmulatedBackend(2) as cluster:
        yield cluster


def test_two_machines_that_are_fit(two, partition_of, tmp_path):
    findings = examine(two, plan_of(two, partition_of(2), tmp_path))
    assert {f.status for f in findings} == {"ok"}, findings
    for name in ("machine-0", "machine-1"):
        checks = {f.check for f in findings if f.machine == name}
        assert checks >= {"address", "ports", "leftovers", "/dev/shm", "partition", "command", "log folder", "clock"}
    assert not (tmp_path / "logs").exists()


def test_one_machine_without_namespaces(partition_of, tmp_path):
    with LocalBackend() as cluster:
        findings = examine(cluster, plan_of(cluster, partition_of(1), tmp_path))
    assert {f.status for f in findings} == {"ok"}, findings


def test_a_foreign_segment_on_one_machine(two, partition_of, tmp_path):
    code = "open('/dev/shm/node~_N~feat-kvdata-', 'w').write('x')"
    two.popen(two.machines[1], [sys.executable, "-c", code]).wait()
    finding = the_fail(examine(two, plan_of(two, partition_of(2), tmp_path)))
    assert finding.machine == "machine-1"
    assert finding.remedy.endswith("rm '/dev/shm/node~_N~feat-kvdata-'")


def test_a_clock_that_is_ahead(two, partition_of, tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "CLOCK_SECONDS", -1.0)
    findings = failed(examine(two, plan_of(two, partition_of(2), tmp_path)))
    assert [f.machine for f in findings if f.check == "clock"] == ["machine-0", "machine-1"]


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ([sys.executable, "-I", "-S", "-m", "no_such_module"], "machine-1: .*No module named no_such_module"),
        (["no-such-python"], "machine-1: cannot start 'no-such-python'"),
        (["sleep", "100"], "machine-1: no answer within 4 s"),
        (["true"], r"machine-1: the agent ended unexpectedly \(exit code 0\)"),
        (["echo", "[1]"], r"machine-1: the agent ended unexpectedly \(exit code 0\)"),
    ],
)
def test_a_machine_that_does_not_answer(two, partition_of, tmp_path, instead, words, monkeypatch):
    original = two.popen

    def popen(machine: Machine, argv, **options) -> subprocess.Popen:
        return original(machine, instead if machine.name == "machine-1" else argv, **options)

    monkeypatch.setattr(two, "popen", popen)
    two.traits = replace(two.traits, answer_seconds=4)
    with pytest.raises(InputError) as caught:
        examine(two, plan_of(two, partition_of(2), tmp_path))
    assert re.match(words, caught.value.message)


def test_another_version_of_tutorial_lib(two, partition_of, tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "package_digest", lambda: "another")
    with pytest.raises(InputError, match="machine-0: its tutorial_lib differs from the one on this computer"):
        examine(two, plan_of(two, partition_of(2), tmp_path))


def test_the_digest_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "launcher").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "launcher" / "environment.py"))
    digests = []
    for name, text in [("a.py", "1"), ("b.txt", "not a module"), ("a.py", "2")]:
        (tmp_path / name).write_text(text)
        digests.append(environment.package_digest())
    assert digests[0] == digests[1] != digests[2]


def test_the_agent_is_light():
    code = (
        "import sys, tutorial_lib.launcher.agent, tutorial_lib.job.dgl\n"
        "assert not {'torch', 'dgl', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
