"""ip_config.txt in and out, and the plan that agents receive."""

import json
import os
from dataclasses import asdict, replace

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.dgl import JobPlan
from tutorial_lib.job.ip_config import read_ip_config, write_ip_config
from tutorial_lib.launcher import environment
from tutorial_lib.launcher.backends.remote import SshBackend
from tutorial_lib.launcher.environment import describe_environment, job_environment, role_environment
from tutorial_lib.launcher.jobspec import Machine
from tutorial_lib.launcher.messages import Channel, Prepare


def test_ip_config_round_trip(tmp_path):
    machines = [Machine("machine-0", "192.168.0.1", 30050), Machine("machine-1", "192.168.0.2", 31000)]
    write_ip_config(tmp_path / "ip_config.txt", machines)
    assert (tmp_path / "ip_config.txt").read_text() == "192.168.0.1 30050\n192.168.0.2 31000\n"
    assert read_ip_config(tmp_path / "ip_config.txt") == machines


def test_port_is_optional_and_blank_lines_do_not_count(tmp_path):
    (tmp_path / "c.txt").write_text("10.0.0.1\n\n10.0.0.2 40000\n")
    assert [(m.name, m.address, m.port) for m in read_ip_config(tmp_path / "c.txt")] == [
        ("machine-0", "10.0.0.1", 30050),
        ("machine-1", "10.0.0.2", 40000),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu-node-1 30050", "line 1: 'gpu-node-1' is not an IPv4 address"),
        ("10.0.0.1\nfe80::1", "line 2: 'fe80::1' is not an IPv4 address"),
        ("10.0.0.300", "is not an IPv4 address"),
        ("10.0.0.1 80", "port '80' is not a number from 1024 to 65535"),
        ("10.0.0.1 99999", "port '99999'"),
        ("10.0.0.1 x", "port 'x'"),
        ("10.0.0.1 1 2", "expected 'address' or 'address port'"),
        ("10.0.0.1\n10.0.0.1", r"line 2: 10\.0\.0\.1 is listed twice"),
        ("\n", "no machine in it"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, text, words):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        read_ip_config(tmp_path / "c.txt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_ip_config(tmp_path / "nothing.txt")


PLAN = JobPlan(
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


def test_a_job_survives_the_connection_to_an_agent():
    """With lists for tuples, as always with JSON."""
    read, write = os.pipe()
    link = Channel(read, write)
    link.put(Prepare(SPEC, 1))
    [prepare] = link.receive()
    assert prepare.index == 1
    assert json.dumps(asdict(prepare.spec)) == json.dumps(asdict(SPEC))


def test_every_client_is_counted():
    """Trainers and their samplers on all machines. With another number, the servers would wait forever."""
    assert SPEC.env["DGL_NUM_CLIENT"] == "18"


def test_server_ids_and_ranks_are_counted_over_machines():
    server, trainer = SPEC.roles
    ids = [role_environment(SPEC, machine, server, k, 4)["DGL_SERVER_ID"] for machine in (0, 1) for k in (0, 1)]
    assert ids == ["0", "1", "2", "3"]
    ranks = [role_environment(SPEC, machine, trainer, k, 4)["RANK"] for machine in (0, 1) for k in range(3)]
    assert ranks == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("asked", "cpus", "servers", "threads"), [(3, 64, 1, 3), (None, 64, 1, 16), (None, 64, 2, 8), (None, 2, 1, 1)]
)
def test_threads_of_a_server(asked, cpus, servers, threads):
    spec = replace(PLAN, server_threads=asked, servers=servers).to_spec()
    assert role_environment(spec, 0, spec.roles[0], 0, cpus)["OMP_NUM_THREADS"] == str(threads)


def test_a_job_without_a_partition_has_plain_ranks():
    spec = replace(PLAN, part_config="").to_spec()
    assert [(role.name, role.after) for role in spec.roles] == [("trainer", None)]
    assert not [name for name in job_environment(spec, 0, "eth0") if name.startswith("DGL_")]


def test_the_added_environment_is_described():
    """What ``launch --verbose`` prints agrees with the environments of the processes."""
    described = describe_environment(SPEC)
    added = job_environment(SPEC, 0, "eth0")
    assert set(added) >= {"DGL_NUM_CLIENT", "GLOO_SOCKET_IFNAME", "PYTHONPATH", "TUTORIAL_LOG_DIR"}
    others = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
    assert [name for name in set(added) - others if f"{name}={added[name]}" not in described] == []
    for role in SPEC.roles:
        assert [name for name in role_environment(SPEC, 0, role, 0, 4) if f"  {name}=" not in described] == []


def test_a_lock_of_an_editor_is_no_part_of_the_package(tmp_path, monkeypatch):
    """Emacs makes a link that points nowhere next to a file that it edits."""
    (tmp_path / "launcher").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "launcher" / "environment.py"))
    before = environment.package_digest()
    (tmp_path / ".#agent.py").symlink_to("me@here.1:2")
    assert environment.package_digest() == before
    (tmp_path / "agent.py").write_text("x")
    assert environment.package_digest() != before


def test_the_remedy_for_ssh_names_its_configuration():
    backend = SshBackend([PLAN.machines[0]], port=23, username="me", config="/my conf")
    remedy = backend.remedy(PLAN.machines[0], "me@10.0.0.1: Permission denied (publickey).")
    assert "ssh-copy-id -F '/my conf' -p 23 me@10.0.0.1" in remedy
