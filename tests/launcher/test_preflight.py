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
from tutorial_lib.launcher import agents
from tutorial_lib.launcher.backends import LocalBackend
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.jobspec import Machine

pytest_plugins = ["preflight_support"]
pytestmark = pytest.mark.usefixtures("nothing_left")


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
        assert checks >= {"address", "ports", "leftovers", "/dev/shm", "partition", "log folder", "clock"}
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


def test_the_agent_is_light():
    code = (
        "import sys, tutorial_lib.launcher.agent, tutorial_lib.job.dgl\n"
        "assert not {'torch', 'dgl', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
