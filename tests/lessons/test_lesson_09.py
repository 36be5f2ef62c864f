"""The checkers of lesson 9 know right from wrong; its helpers read sockets and logs; its pictures can be drawn."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from solution_support import solutions, verdict

from support.exercises import lesson_09
from support.lessons import anatomy, look_around, machines
from support.lessons.anatomy import Call, Who
from support.plots import anatomy as plots
from tutorial_lib.cluster.emulated import EmulationUnavailable

ANSWERS = solutions("09")
layout_numbers = ANSWERS.layout_numbers
rows_and_bytes = ANSWERS.rows_and_bytes


def busiest_cable(traffic: Any, rate: int, direction: Callable[[int, int], int] = max) -> tuple[str, float]:
    busy = {
        name: direction(sum(row.values()), sum(other.get(name, 0) for other in traffic.values())) / rate
        for name, row in traffic.items()
    }
    return max(busy, key=lambda name: busy[name]), max(busy.values())


def bytes_in_a_tensor(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, count = rows_and_bytes(*arguments)
    return rows, torch.tensor(count)


def whole_seconds(traffic: Any, rate: int) -> tuple[str, int]:
    name, seconds = busiest_cable(traffic, rate)
    return name, int(seconds)


RIGHT = [
    (lesson_09.check_rows_and_bytes, bytes_in_a_tensor),
    (lesson_09.check_busiest_cable, whole_seconds),
    (lesson_09.check_layout_numbers, layout_numbers),
    (lesson_09.check_rows_and_bytes, rows_and_bytes),
    (lesson_09.check_busiest_cable, busiest_cable),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right_answers(check, answer, capsys):
    assert verdict(capsys, check, answer).endswith(": correct\n")


def without_samplers(machines: Any, trainers: int, samplers: int, servers: int) -> tuple[int, list[str]]:
    return len(machines) * trainers * max(samplers, 1), layout_numbers(machines, 1, 0, servers)[1]


def server_by_server(machines: Any, trainers: int, samplers: int, servers: int) -> tuple[int, list[str]]:
    addresses = [f"{address}:{port + k}" for k in range(servers) for address, port in machines]
    return layout_numbers(machines, trainers, samplers, servers)[0], addresses


def all_rows_travel(bounds: Any, nodes: torch.Tensor, here: int, row_bytes: int) -> tuple[torch.Tensor, int]:
    return rows_and_bytes(bounds, nodes, here, row_bytes)[0], len(nodes) * row_bytes


def last_id_included(bounds: Any, nodes: torch.Tensor, here: int, row_bytes: int) -> tuple[torch.Tensor, int]:
    return rows_and_bytes([bounds[0], *(b + 1 for b in bounds[1:])], nodes, here, row_bytes)


WRONG = [
    (lesson_09.check_layout_numbers, lambda *a: layout_numbers(*a)[:1], ["what came back", "got       'tuple of 1'"]),
    (lesson_09.check_rows_and_bytes, lambda *a: rows_and_bytes(*a)[:1], ["what came back", "got       'tuple of 1'"]),
    (lesson_09.check_busiest_cable, lambda *a: busiest_cable(*a)[:1], ["what came back", "got       'tuple of 1'"]),
    (lesson_09.check_layout_numbers, lambda *_: None, ["'NoneType'", "'tuple of 2'"]),
    (lesson_09.check_layout_numbers, without_samplers, ["got       16", "expected  24", "a sampler is a client"]),
    (lesson_09.check_layout_numbers, server_by_server, ["DGL_SERVER_ID counts", "10.0.0.7:31000"]),
    (lesson_09.check_rows_and_bytes, lambda *_: None, ["'NoneType'", "'tuple of 2'"]),
    (lesson_09.check_rows_and_bytes, all_rows_travel, ["got       2000", "expected  800", "shared memory"]),
    (lesson_09.check_rows_and_bytes, last_id_included, ["got       tensor (2,)", "not including"]),
    (lesson_09.check_busiest_cable, lambda *_: None, ["'NoneType'", "'tuple of 2'"]),
    (
        lesson_09.check_busiest_cable,
        lambda traffic, rate: busiest_cable(traffic, rate, lambda received, _sent: received),
        ["got       'c'", "expected  'a'", "each other row"],
    ),
    (
        lesson_09.check_busiest_cable,
        lambda traffic, rate: busiest_cable(traffic, rate, lambda received, sent: received + sent),
        ["got       10.0", "expected  8.0", "same time"],
    ),
]


@pytest.mark.parametrize(("check", "answer", "says"), WRONG)
def test_wrong_answers(check, answer, says, capsys):
    said = verdict(capsys, check, answer)
    assert ": not yet. " in said
    for words in says:
        assert words in said


def test_roles_are_read_from_command_and_environment():
    server = {"DGL_ROLE": "server", "DGL_SERVER_ID": "5", "DGL_NUM_SERVER": "2"}
    trainer = {"DGL_ROLE": "client", "LOCAL_RANK": "3"}
    torchrun = ["python", "-m", "torch.distributed.run", "--nnodes=2"]
    assert look_around.role_of(["python", "x.py"], server) == ("server", 1)
    assert look_around.role_of(["python", "x.py"], trainer) == ("trainer", 3)
    assert look_around.role_of(["python", "-c", "...", "--multiprocessing-fork"], trainer) == ("sampler", 3)
    tracker = ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"]
    assert look_around.role_of(tracker, trainer) == ("tracker", 3)
    assert look_around.role_of(torchrun, {"DGL_ROLE": "client"}) == ("torchrun", 0)
    assert look_around.role_of(["bash"], {}) is None


def test_sockets_and_shared_memory_of_a_real_process():
    own = {os.getpid(): {}}
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        accepted, _address = server.accept()
        with accepted:
            port = server.getsockname()[1]
            listening, connected = look_around.sockets(own)
            assert [os.getpid(), port] in listening
            ends = [entry[1:] for entry in connected]
            assert [f"127.0.0.1:{client.getsockname()[1]}", f"127.0.0.1:{port}"] in ends
    assert look_around.sockets({}) == ([], [])
    shared = SharedMemory(create=True, size=10)
    try:
        assert look_around.shared_memory(own)[shared.name] == [os.getpid()]
        assert look_around.shared_memory({})[shared.name] == []
    finally:
        shared.close()
        shared.unlink()


def test_the_program_prints_one_line_of_json():
    command = [sys.executable, "-m", "support.lessons.look_around"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    facts = json.loads(done.stdout)
    assert facts["machine"] == os.uname().nodename
    assert set(facts) == {"machine", "addresses", "processes", "listening", "connected", "shm"}


def machine(name: str, address: str, **more: Any) -> dict[str, Any]:
    facts = {"machine": name, "addresses": {"eth0": [address]}, "processes": {}, "listening": [], "connected": []}
    return {**facts, "shm": {}, **more}


@pytest.fixture
def facts() -> list[dict[str, Any]]:
    """Machine a has a server and a trainer, machine b has a trainer; each trainer calls, the server calls b back."""
    on_a = {"2": {"role": "server", "index": 0}, "3": {"role": "trainer", "index": 0}}
    return [
        machine(
            "a",
            "10.0.0.1",
            processes=on_a,
            listening=[[2, 30050]],
            connected=[
                [2, "10.0.0.1:30050", "10.0.0.1:40000"],
                [3, "10.0.0.1:40000", "10.0.0.1:30050"],
                [2, "10.0.0.1:30050", "10.0.0.2:40000"],
                [2, "10.0.0.1:41000", "10.0.0.2:50000"],
                [3, "10.0.0.1:42000", "10.0.0.9:1"],  # to nobody we know
            ],
            shm={"node~_N~feat-kvdata-": [2, 3], "sem.mp-abc": [3]},
        ),
        machine(
            "b",
            "10.0.0.2",
            processes={"2": {"role": "trainer", "index": 0}},
            listening=[[2, 50000]],
            connected=[[2, "10.0.0.2:40000", "10.0.0.1:30050"], [2, "10.0.0.2:50000", "10.0.0.1:41000"]],
        ),
    ]


def test_calls_join_both_ends(facts):
    server, here, there = Who("a", "server", 0), Who("a", "trainer", 0), Who("b", "trainer", 0)
    expected = [Call(server, there, 50000), Call(here, server, 30050), Call(there, server, 30050)]
    assert anatomy.calls(facts) == sorted(expected)
    assert str(there) == "trainer 0 on b"
    assert str(Who("b", "torchrun", 0)) == "torchrun on b"


def test_shared_names_leave_out_locks(facts):
    assert anatomy.shared_names(facts[0]) == {"node~_N~feat-kvdata-": ["server 0", "trainer 0"]}


def test_logs_are_shown_without_numbers_that_differ():
    assert anatomy.plain("Client [33] waits on 10.77.0.1:4567") == "Client [PID] waits on 10.77.0.1:PORT"
    assert anatomy.plain("Machine (0) group (0) client (1)") == "Machine (0) group (0) client (1)"


def test_a_host_that_forbids_emulation_gets_one_message(monkeypatch):
    def refuse(_cluster):
        raise EmulationUnavailable("this host does not allow emulated machines: no", "Change that.")

    monkeypatch.setattr(machines.EmulatedCluster, "__enter__", refuse)
    for call in (lambda: machines.start_machines(2), machines.require_machines):
        with pytest.raises(machines.StopHere) as stop:
            call()
        assert stop.value._render_traceback_() == [
            "This lesson cannot run here: this host does not allow emulated machines: no",
            "Change that.",
        ]


def test_a_process_that_ends_too_early_is_told_with_its_log(tmp_path):
    cluster = SimpleNamespace(popen=lambda _machine, argv, **more: subprocess.Popen(argv, **more))
    partition = SimpleNamespace(config=tmp_path / "x.json", graph_name="x")
    machines = [SimpleNamespace(name="m", address="10.0.0.1", port=30050)]
    job = anatomy.HandMade(cluster, anatomy.make_plan(machines, partition, tmp_path))  # type: ignore[arg-type]
    job.start(0, "server-0", [sys.executable, "-c", "raise SystemExit('no such part')"], dict(os.environ))
    with pytest.raises(RuntimeError, match=r"waited for the end; .*server-0.* ended\nno such part"):
        job.wait_until(lambda: False, "the end")


def test_pictures(facts, tmp_path: Path):
    figure = plots.cluster_figure(facts, anatomy.calls(facts))
    figure.savefig(tmp_path / "cluster.png")
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"a   10.0.0.1", "b   10.0.0.2", "server 0\nport 30050", "trainer 0"} <= texts
    assert "/dev/shm: 1 names of DGL\nmapped by server 0, trainer 0" in texts


def test_the_environment_that_is_shown_is_that_of_the_job():
    """Whatever the shell of the reader, or of the tests, has set for itself."""
    given = {"TUTORIAL_NO_SKIP": "1", "TUTORIAL_LOG_DIR": "/w/logs", "HOME": "/root", "DGL_CONF_PATH": "/w/p.json"}
    shown = anatomy.shown_env({**given, "TUTORIAL_MACHINE": "machine-0"}, Path("/w"))
    assert shown == {"DGL_CONF_PATH": "WORK/p.json", "TUTORIAL_MACHINE": "machine-0"}
