"""Emulated machines with real namespaces and links."""

import json
import os
import subprocess
import sys

import pytest
from commands import wait_until

from tutorial_lib.errors import InputError
from tutorial_lib.launcher.backends.emulated import EmulatedBackend, parse_wire
from tutorial_lib.launcher.backends.machine_daemon import BURST_BYTES
from tutorial_lib.launcher.jobspec import Machine

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


def output(cluster: EmulatedBackend, machine: Machine, *argv: str) -> str:
    process = cluster.popen(machine, argv, stdout=subprocess.PIPE, text=True)
    text = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    return text.strip()


def transfer(cluster: EmulatedBackend, source: Machine, target: Machine, size: int) -> float:
    """Send ``size`` bytes over the wire and return the seconds it took."""
    server = cluster.popen(target, [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "up\n"
    seconds = float(output(cluster, source, sys.executable, "-c", SEND, target.address, str(size)))
    assert server.communicate(timeout=30)[0] == f"{size}\n"
    return seconds


def test_machines_are_isolated_connected_and_reap_orphans(emulation, nothing_left):
    """L33. The parent of an orphan is PID 1 of its machine, which leaves no zombie."""
    with EmulatedBackend(8) as cluster:
        first, *_, last = cluster.machines
        assert output(cluster, last, "hostname", "-I") == last.address
        assert output(cluster, first, "getent", "hosts", "machine-7").split()[0] == last.address
        assert transfer(cluster, first, last, 100_000) > 0
        output(cluster, first, "touch", "/dev/shm/node~_N~feat-kvdata-")
        assert [output(cluster, machine, "ls", "/dev/shm") for machine in (first, last)] == ["node~_N~feat-kvdata-", ""]
        assert "node~_N~feat-kvdata-" not in os.listdir("/dev/shm")
        output(cluster, first, "sh", "-c", "sleep 4 >/dev/null & exit")
        processes = "cat /proc/[0-9]*/stat | cut -d ' ' -f 2,4"
        assert "(sleep) 1" in output(cluster, first, "sh", "-c", processes).splitlines()
        wait_until(lambda: "(sleep)" not in output(cluster, first, "sh", "-c", processes), "the orphan to go")


def test_shaped_link_does_not_exceed_its_rate(emulation, nothing_left):
    """L33. The bucket lets 256 KiB through at once."""
    assert BURST_BYTES >= 256 * 1024
    size = 20_000_000
    with EmulatedBackend(2, wire="200mbit") as cluster:
        # 160 Mbit at 200 Mbit/s, less the bucket: a bound of physics, not of speed.
        assert transfer(cluster, *cluster.machines, size) > 0.9 * (size - BURST_BYTES) * 8 / 200e6


def where_forbidden(*arguments: str) -> subprocess.CompletedProcess:
    """Run Python in a user namespace that allows no namespaces below it."""
    limits = "for name in user mnt pid; do echo 0 > /proc/sys/user/max_${name}_namespaces; done"
    command = ["unshare", "-Ur", "sh", "-c", f'{limits}; exec "$0" "$@"', sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_first_run_without_namespaces_uses_one_machine(emulation, nothing_left, data_root, tmp_path):
    """L31. As in `make run`. Machines that the user asks for are an error, which names the refused step."""
    words = ["-m", "tutorial_lib", "train", "--scale", "0.005", "--epochs", "1", "--root", str(data_root)]
    done = where_forbidden(*words, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("warning: this host does not allow emulated machines: ")
    assert warning.endswith(". Continuing as train --machines 1 --trainers 2")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["machines"], result["trainers_per_machine"]) == (1, 2)
    options = json.loads((tmp_path / "run" / "options.json").read_text())
    assert (options["machines"], options["trainers"]) == (1, 2)  # for --resume, whatever the host allows then
    done = where_forbidden(*words, "--emulate", "2", "--out", str(tmp_path / "other"))
    assert done.returncode == 2
    assert "error: this host does not allow emulated machines: create pid namespaces" in done.stderr
    assert "user.max_user_namespaces is 0; an administrator can allow it with: sudo sysctl" in done.stderr


def test_parse_wire():
    texts = ("1gbit", "200mbit", "unshaped", None)
    assert [parse_wire(text) for text in texts] == [125_000_000, 25_000_000, None, None]
    for wrong in ("fast", "1", "0mbit", "-1gbit", "1gbit/s", "1kbit"):
        with pytest.raises(InputError, match="is not a rate"):
            parse_wire(wrong)


def test_cpus_are_divided(monkeypatch):
    with pytest.raises(InputError, match="cannot emulate 65 machines"):
        EmulatedBackend(65)
    for count, cpus, shares in [(3, 8, [(0, 3, 6), (1, 4, 7), (2, 5)]), (4, 2, [(0,), (1,), (0,), (1,)])]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, cpus=cpus: set(range(cpus)))
        assert [machine.cpus for machine in EmulatedBackend(count).machines] == shares
