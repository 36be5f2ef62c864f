"""Reading and writing ip_config.txt, and the plan that agents receive."""

from dataclasses import replace

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import DglJob
from tutorial_lib.job.ip_config import read_ip_config, write_ip_config
from tutorial_lib.launcher import environment
from tutorial_lib.launcher.backends.remote import SshBackend
from tutorial_lib.launcher.environment import describe_environment, job_environment, role_environment
from tutorial_lib.launcher.jobspec import Machine


def test_ip_config_round_trip_and_blank_lines(tmp_path):
    machines = [Machine("machine-0", "192.168.0.1", 30050), Machine("machine-1", "192.168.0.2", 31000)]
    write_ip_config(tmp_path / "ip_config.txt", machines)
    assert (tmp_path / "ip_config.txt").read_text() == "192.168.0.1 30050\n192.168.0.2 31000\n"
    assert read_ip_config(tmp_path / "ip_config.txt") == machines
    (tmp_path / "c.txt").write_text("10.0.0.1\n\n10.0.0.2 40000\n")
    machines = [Machine("machine-0", "10.0.0.1", 30050), Machine("machine-1", "10.0.0.2", 40000)]
    assert read_ip_config(tmp_path / "c.txt") == machines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu-node-1 30050", "line 1: 'gpu-node-1' is not an IPv4 address"),
        ("10.0.0.1\nfe80::1", "line 2: 'fe80::1' is not an IPv4 address"),
        ("10.0.0.1 80", "port '80' is not a number from 1024 to 65535"),
        ("10.0.0.1 1 2", "port '1 2'"),
        ("10.0.0.1\n10.0.0.1", r"line 2: 10\.0\.0\.1 is listed twice"),
        ("\n", "lists no machines"),
    ],
)
def test_ip_config_errors_name_their_line(tmp_path, text, words):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        read_ip_config(tmp_path / "c.txt")


PLAN = DglJob(
    machines=[Machine("machine-0", "10.0.0.1", cpus=(0,)), Machine("machine-1", "10.0.0.2", cpus=(1,))],
    command=["/opt/my python/bin/python", "train.py", "--name", "with space", '"quoted"'],
    part_config="/p/g.json",
    ip_config="/p/ip_config.txt",
    log_dir="/logs",
    cwd="/work dir",
    master_port=29500,
    trainers=3,
    samplers=2,
    servers=2,
)
SPEC = PLAN.to_spec()


def test_number_of_clients(monkeypatch):
    """Trainers and their samplers on all machines. With another number, the servers would wait forever."""
    monkeypatch.setenv("DGL_NUM_CLIENT", "99")  # of the shell: the job sets its own
    assert PLAN.to_spec().env["DGL_NUM_CLIENT"] == "18"


@pytest.mark.parametrize(
    ("asked", "cpus", "servers", "threads"), [(3, 64, 1, 3), (None, 64, 1, 16), (None, 64, 2, 8), (None, 2, 1, 1)]
)
def test_server_threads(asked, cpus, servers, threads):
    spec = replace(PLAN, server_threads=asked, servers=servers).to_spec()
    assert role_environment(spec, 0, spec.roles[0], 0, cpus)["OMP_NUM_THREADS"] == str(threads)


def test_the_added_environment_is_described():
    described, added = describe_environment(SPEC), job_environment(SPEC, 0, "(that of 10.0.0.1)")
    assert set(added) >= {"DGL_NUM_CLIENT", "GLOO_SOCKET_IFNAME", "PYTHONPATH", "TUTORIAL_LOG_DIR"}
    assert [name for name in added if f"\n  {name}={added[name]}" not in described] == []
    for role in SPEC.roles:
        assert [name for name in role_environment(SPEC, 0, role, 0, 4) if f"\n  {name}=" not in described] == []


def test_package_digest_ignores_editor_locks(tmp_path, monkeypatch):
    """Emacs makes a link that points nowhere next to a file that it edits."""
    (tmp_path / "launcher").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "launcher" / "environment.py"))
    before = environment.package_digest()
    (tmp_path / ".#agent.py").symlink_to("me@here.1:2")
    assert environment.package_digest() == before
    (tmp_path / "agent.py").write_text("x")
    assert environment.package_digest() != before


def test_ssh_remedy_names_config_file():
    backend = SshBackend([PLAN.machines[0]], port=23, username="me", config="/my conf")
    remedy = backend.remedy(PLAN.machines[0], "me@10.0.0.1: Permission denied (publickey).")
    assert "ssh-copy-id -F '/my conf' -p 23 me@10.0.0.1" in remedy
