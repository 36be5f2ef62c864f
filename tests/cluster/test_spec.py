"""ip_config.txt in and out, and the plan that agents receive."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tutorial_lib.cluster.plan import JobPlan, environment_text, server_env, server_role, torchrun_argv, trainer_env
from tutorial_lib.cluster.spec import Machine, read_ip_config, write_ip_config
from tutorial_lib.errors import InputError


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


def test_plan_survives_the_wire():
    assert JobPlan.from_json(PLAN.to_json()) == PLAN
    assert "\n" not in PLAN.to_json()


def test_every_client_is_counted():
    """Trainers and their samplers on all machines; with another number the servers would wait for ever."""
    assert PLAN.world_size == 6
    assert PLAN.num_clients == 18


def test_server_ids_are_counted_over_machines():
    ids = [server_env(PLAN, machine, k, "eth0", 4)["DGL_SERVER_ID"] for machine in (0, 1) for k in (0, 1)]
    assert ids == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("asked", "cpus", "servers", "threads"), [(3, 64, 1, 3), (None, 64, 1, 16), (None, 64, 2, 8), (None, 2, 1, 1)]
)
def test_threads_of_a_server(asked, cpus, servers, threads):
    plan = replace(PLAN, server_threads=asked, servers=servers)
    assert server_env(plan, 0, 0, "eth0", cpus)["OMP_NUM_THREADS"] == str(threads)
    assert server_role(plan, 0, 0, cpus)["OMP_NUM_THREADS"] == str(threads)


def test_the_command_reaches_torchrun_untouched():
    assert torchrun_argv(PLAN, 1)[-5:] == PLAN.command


def test_everything_that_is_added_to_the_environment_is_told():
    """What ``launch --verbose`` prints, against the environments that the processes get."""
    told = environment_text(PLAN)
    for environment in (server_env(PLAN, 0, 0, "eth0", cpus=4), trainer_env(PLAN, 0, "eth0", cpus=4)):
        added = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        assert set(added) >= {"DGL_NUM_CLIENT", "GLOO_SOCKET_IFNAME", "PYTHONPATH", "TUTORIAL_LOG_DIR"}
        assert [name for name in added if name not in told] == []
        own = {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "DGL_SERVER_ID", "TUTORIAL_INDEX"}
        assert [name for name in set(added) - own if f"{name}={added[name]}" not in told] == []
