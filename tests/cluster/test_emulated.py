"""Emulated machines: real namespaces, real cables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import PYTHONPATH_OF_ALL, ordinary_user

from tutorial_lib.cluster.emulated import EmulatedCluster, divide_cpus, parse_wire
from tutorial_lib.cluster.spec import Machine
from tutorial_lib.errors import InputError
from tutorial_lib.files import find_program

ROOT = Path(__file__).resolve().parents[2]
SERVE = """
import socket
with socket.create_server(("0.0.0.0", 5000)) as server:
    print("up", flush=True)
    connection = server.accept()[0]
    total = 0
    while chunk := connection.recv(1 << 20):
        total += len(chunk)
    print(total)
"""
SEND = """
import socket, sys, time
start = time.monotonic()
with socket.create_connection((sys.argv[1], 5000), timeout=20) as line:
    line.sendall(bytes(int(sys.argv[2])))
    line.shutdown(socket.SHUT_WR)
    line.recv(1)
print(time.monotonic() - start)
"""


def output(cluster: EmulatedCluster, machine: Machine, *argv: str) -> str:
    process = cluster.popen(machine, argv, stdout=subprocess.PIPE, text=True)
    text = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    return text.strip()


def transfer(cluster: EmulatedCluster, source: Machine, target: Machine, size: int) -> float:
    """Send ``size`` bytes over the wire and return the seconds it took."""
    server = cluster.popen(target, [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "up\n"
    seconds = float(output(cluster, source, sys.executable, "-c", SEND, target.address, str(size)))
    assert server.communicate(timeout=30)[0] == f"{size}\n"
    return seconds


@pytest.mark.parametrize("count", [2, 4, 8])
def test_machines_have_their_own_identity_and_reach_each_other(count, emulation, nothing_left):
    with EmulatedCluster(count) as cluster:
        names = [output(cluster, machine, "hostname") for machine in cluster.machines]
        assert names == [f"machine-{k}" for k in range(count)]
        addresses = [output(cluster, machine, "hostname", "-I") for machine in cluster.machines]
        assert addresses == [machine.address for machine in cluster.machines]
        # By name, from the first to the last.
        assert output(cluster, cluster.machines[0], "getent", "hosts", names[-1]).split()[0] == addresses[-1]
        assert transfer(cluster, cluster.machines[0], cluster.machines[-1], 100_000) > 0


def test_shared_memory_and_processes_are_private(emulation, nothing_left):
    with EmulatedCluster(2) as cluster:
        first, second = cluster.machines
        output(cluster, first, "touch", "/dev/shm/node~_N~feat-kvdata-")
        assert output(cluster, first, "ls", "/dev/shm") == "node~_N~feat-kvdata-"
        assert output(cluster, second, "ls", "/dev/shm") == ""
        assert "node~_N~feat-kvdata-" not in os.listdir("/dev/shm")
        assert len(output(cluster, first, "sh", "-c", "ls -d /proc/[0-9]*").splitlines()) < 8


def test_shaped_wire_cannot_be_faster_than_its_rate(emulation, nothing_left):
    size = 20_000_000
    with EmulatedCluster(2, wire="200mbit") as cluster:
        # 160 Mbit at 200 Mbit/s, less what the bucket (256 KiB) lets through at once: a bound of physics, not of speed.
        assert transfer(cluster, *cluster.machines, size) > 0.9 * (size - 256 * 1024) * 8 / 200e6
        assert "tbf" in output(cluster, cluster.machines[0], *tool("tc"), "qdisc", "show", "dev", "eth0")


def tool(name: str) -> list[str]:
    """A program of iproute2, which may lie outside an ordinary user's PATH."""
    found = find_program(name)
    if found is None:
        pytest.skip(f"needs the program {name} (package iproute2)")
    return [found]


def sleeping(cluster: EmulatedCluster, machine: Machine) -> subprocess.Popen:
    """A program that runs on a machine, and does not end by itself."""
    process = cluster.popen(machine, ["sh", "-c", "echo up; exec sleep 1000"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    return process


def test_exit_code_and_signals_pass_through(emulation, nothing_left):
    with EmulatedCluster(1) as cluster:
        (machine,) = cluster.machines
        assert cluster.popen(machine, ["sh", "-c", "exit 7"]).wait(timeout=10) == 7
        sleeper = sleeping(cluster, machine)
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(timeout=10) == -signal.SIGTERM
        killed = cluster.popen(machine, ["sh", "-c", "kill -9 $$"])
        assert killed.wait(timeout=10) == -signal.SIGKILL
        missing = cluster.popen(machine, ["no-such-program"], stderr=subprocess.PIPE, text=True)
        assert "cannot start 'no-such-program'" in missing.communicate(timeout=10)[1]


def test_leaving_the_cluster_kills_what_runs_on_it(emulation, nothing_left):
    with EmulatedCluster(2) as cluster:
        sleepers = [sleeping(cluster, machine) for machine in cluster.machines]
    assert all(sleeper.wait(timeout=10) != 0 for sleeper in sleepers)


PARENT = """
import time
from tutorial_lib.cluster.emulated import EmulatedCluster
with EmulatedCluster(4) as cluster:
    for machine in cluster.machines:
        cluster.popen(machine, ["sleep", "1000"])
    print("up", flush=True)
    time.sleep(1000)
"""


def test_sigkill_of_the_parent_leaves_nothing(emulation, nothing_left):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "up\n"
    parent.kill()
    parent.wait(timeout=10)


def test_a_whole_run_of_an_unprivileged_user(emulation, nothing_left, data_root):
    """Two machines, servers, trainers, one accuracy; by user 65534 when the tests run as root."""
    python, user = ordinary_user()
    # Not below the test's own temporary folder: only root may enter that.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        arguments = ["train", "--emulate", "2", "--scale", "0.002", "--epochs", "1", "--batch-size", "100"]
        done = subprocess.run(
            [python, "-B", "-m", "tutorial_lib", *arguments, "--root", f"{folder}/data", "--out", f"{folder}/run"],
            **user,
            env={**os.environ, "HOME": folder, "PYTHONPATH": PYTHONPATH_OF_ALL},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(Path(folder, "run", "result.json").read_text())["world_size"] == 2


def where_forbidden(*arguments: str) -> subprocess.CompletedProcess:
    """Run Python in a user namespace that allows no namespaces below it."""
    limits = "for name in user mnt pid; do echo 0 > /proc/sys/user/max_${name}_namespaces; done"
    command = ["unshare", "-Ur", "sh", "-c", f'{limits}; exec "$0" "$@"', sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_where_namespaces_are_forbidden_a_first_run_stays_on_this_machine(emulation, nothing_left, data_root, tmp_path):
    """As in `make run`. Machines that the user asks for are an error."""
    words = ["-m", "tutorial_lib", "train", "--scale", "0.005", "--epochs", "1", "--root", str(data_root)]
    done = where_forbidden(*words, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("warning: this host does not allow emulated machines: ")
    assert "user.max_user_namespaces is 0" in warning
    assert warning.endswith(". This run is train --machines 1 --trainers 2")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["machines"], result["trainers_per_machine"]) == (1, 2)
    options = json.loads((tmp_path / "run" / "options.json").read_text())
    assert (options["machines"], options["trainers"]) == (1, 2)  # for --resume, whatever the host allows then
    done = where_forbidden(*words, "--emulate", "2", "--out", str(tmp_path / "other"))
    assert done.returncode == 2
    assert "error: this host does not allow emulated machines: " in done.stderr


def test_a_host_that_forbids_namespaces_is_told_apart(emulation, nothing_left):
    """Forbidden for real, inside a user namespace whose limits are set to zero."""
    code = (
        "from tutorial_lib.cluster.emulated import EmulatedCluster, EmulationUnavailable\n"
        "try:\n"
        "    EmulatedCluster(2).__enter__()\n"
        "except EmulationUnavailable as error:\n"
        "    print(error.message); print(error.remedy)\n"
    )
    done = where_forbidden("-c", code)
    assert "this host does not allow emulated machines: create mount and pid namespaces" in done.stdout, done.stderr
    assert "user.max_user_namespaces is 0" in done.stdout
    assert "--machines 1 --trainers 2" in done.stdout


@pytest.mark.parametrize(("text", "rate"), [("1gbit", 125_000_000), ("200mbit", 25_000_000), (None, None)])
def test_parse_wire(text, rate):
    assert parse_wire(text) == rate


@pytest.mark.parametrize("text", ["fast", "1", "0mbit", "-1gbit", "1gbit/s", "100gbit", "1kbit"])
def test_parse_wire_refuses(text):
    with pytest.raises(InputError, match="is not a rate"):
        parse_wire(text)


@pytest.mark.parametrize("count", [0, 65])
def test_number_of_machines_is_checked(count):
    with pytest.raises(InputError, match=f"cannot emulate {count} machines"):
        EmulatedCluster(count)


def test_cpus_are_divided(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert divide_cpus(3) == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert divide_cpus(2) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert divide_cpus(4) == [(0,), (1,), (0,), (1,)]
