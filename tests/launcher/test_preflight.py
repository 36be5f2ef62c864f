"""Comparisons of the coordinator before a job, and the checks of emulated machines."""

import re
import subprocess
import sys

import pytest
from fault_support import make_job, run_checks

from tutorial_lib.errors import InputError
from tutorial_lib.job.ip_config import check_private
from tutorial_lib.launcher import agents
from tutorial_lib.launcher.backends.emulated import EmulatedBackend
from tutorial_lib.launcher.jobspec import Machine

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_public_addresses():
    private = [Machine(a, a) for a in ("10.0.0.1", "172.16.3.4", "127.0.0.1", "169.254.1.1")]
    check_private(private)
    with pytest.raises(InputError, match=r"e: 8\.8\.8\.8 is a public address") as caught:
        check_private([*private, Machine("e", "8.8.8.8")])
    assert "--allow_public_addresses" in caught.value.remedy


@pytest.fixture
def two(emulation):
    with EmulatedBackend(2) as cluster:
        yield cluster


def test_foreign_segment_and_wrong_clock_are_found(two, partition_of, tmp_path, monkeypatch):
    plan = make_job(two, partition_of(2), tmp_path)
    findings = run_checks(two, plan)
    assert {f.status for f in findings} == {"ok"}, findings
    for name in ("machine-0", "machine-1"):
        checks = {f.check for f in findings if f.machine == name}
        assert checks >= {"address", "ports", "leftovers", "/dev/shm", "partition", "log folder", "clock"}
    assert not (tmp_path / "logs").exists()
    code = "open('/dev/shm/node~_N~feat-kvdata-', 'w').write('x')"
    two.popen(two.machines[1], [sys.executable, "-c", code]).wait()
    monkeypatch.setattr(agents, "CLOCK_SECONDS", -1.0)
    found = {(f.machine, f.check): f for f in run_checks(two, plan).failed}
    segment = found.pop(("machine-1", "leftovers"))
    assert segment.remedy.endswith("rm '/dev/shm/node~_N~feat-kvdata-'")
    assert set(found) == {("machine-0", "clock"), ("machine-1", "clock")}


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ([sys.executable, "-I", "-S", "-m", "no_such_module"], "machine-1: .*No module named no_such_module"),
        (["no-such-python"], "machine-1: cannot start 'no-such-python'"),
        (["sleep", "100"], "machine-1: no answer within 4 s"),
        (["echo", "[1]"], r"machine-1: the agent ended unexpectedly \(exit code 0\)"),
    ],
)
def test_machine_without_answer_is_named(two, partition_of, tmp_path, instead, words, monkeypatch):
    original = two.popen

    def popen(machine: Machine, argv, **options) -> subprocess.Popen:
        return original(machine, instead if machine.name == "machine-1" else argv, **options)

    monkeypatch.setattr(two, "popen", popen)
    monkeypatch.setattr(agents, "START_SECONDS", 4.0)
    with pytest.raises(InputError) as caught:
        run_checks(two, make_job(two, partition_of(2), tmp_path))
    assert re.match(words, caught.value.message)


def test_different_tutorial_lib_version_is_found(two, partition_of, tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "package_digest", lambda: "another")
    with pytest.raises(InputError, match="machine-0: tutorial_lib differs from the version on this computer"):
        run_checks(two, make_job(two, partition_of(2), tmp_path))


def test_agent_imports_few_modules():
    code = "import sys, tutorial_lib.launcher.agent, tutorial_lib.job.dgl\n"
    code += "assert not {'torch', 'dgl', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
