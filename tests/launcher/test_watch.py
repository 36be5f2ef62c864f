"""An agent's view of the processes, the memory and the disk of its machine."""

import os
import resource
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from commands import wait_until
from fault_support import DUMP, register_process

from tutorial_lib.launcher import watch
from tutorial_lib.launcher.watch import MachineHealth, ProcessStack, collect_stacks, find_disk_problem


@pytest.mark.parametrize(("state", "prefix"), [("S", ""), ("D", "waits for a disk or a network file system, ")])
def test_stack_summary_uses_main_thread(state, prefix):
    """L18. A report names processes that are stopped or wait for a disk."""
    stack = ProcessStack("trainer", 0, 7, state, DUMP)
    where = "in all_reduce (distributed_c10d.py:1997), called from train.py:33 in main"
    assert stack.where() == (prefix or "is ") + where
    assert ProcessStack("trainer", 0, 7, state, "").where() == f"{prefix}wrote no Python stack"


BYSTANDER = """
import signal, sys, time
signal.signal(signal.SIGRTMAX - 1, lambda *_: print("signaled", flush=True))
print("up", flush=True)
sys.stdin.readline()
print("alive", flush=True)
time.sleep(100)
"""


def test_reused_pid_gets_no_signal(tmp_path):
    """L12. Neither an unrelated process nor a former member that has become another program has the file open."""
    process = subprocess.Popen([sys.executable, "-c", BYSTANDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"up\n"
        register_process(tmp_path, process.pid, "trainer")
        assert collect_stacks(tmp_path) == []
        process.stdin.write(b"\n")  # a signal would have come before
        process.stdin.flush()
        assert process.stdout.readline() == b"alive\n"
    finally:
        process.kill()
        assert process.communicate()[0] == b""


def test_a_failed_sampler_is_reported(tmp_path):
    """L10. It is a zombie of a trainer that waits for it forever. Exit code 0 and SIGTERM are not reported."""
    commands = ["kill -9 $$", "exit 3", "exit 0", "kill $$"]
    shell = os.fsencode(tmp_path) + b"/\xff"  # a process can have a name that is no UTF-8
    os.symlink(shutil.which("sh"), shell)
    workers = [subprocess.Popen([shell, "-c", f"read line; {command}"], stdin=subprocess.PIPE) for command in commands]
    for worker in workers:
        register_process(tmp_path, worker.pid, "sampler")
    health = MachineHealth(tmp_path)
    assert health.dead_workers() == []
    for worker in workers:
        worker.stdin.close()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert health.dead_workers() == []  # the trainer may be about to collect them
    found = {member.pid: code for member, code in health.dead_workers()}
    assert found == {workers[0].pid: -signal.SIGKILL, workers[1].pid: 3}
    for worker in workers:
        worker.wait()


def test_signs_of_life(tmp_path):
    health = MachineHealth(tmp_path)
    health.signs_of_life()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (tmp_path / "trainer-0.log").write_text("hello")
        (tmp_path / "agent.log").write_text("not of the job")
        wait_until(lambda: sum(psutil.Process(busy.pid).cpu_times()[:2]) >= 0.3, "a third of a second of work")
        signs = health.signs_of_life()
        assert signs["cpu"] > 0.1
        assert signs["wrote"] == 5
        assert health.signs_of_life()["wrote"] == 0
    finally:
        busy.kill()
        busy.wait()


def test_memory_kill_is_reported_only_near_a_death(tmp_path, monkeypatch):
    """L19. A kill is reported for ten seconds, and only for a process that ended by SIGKILL. See also test_faults."""
    kills = [3]
    monkeypatch.setattr(watch, "memory_kills", lambda: kills[0])
    health = MachineHealth(tmp_path)
    assert not health.out_of_memory(-signal.SIGKILL)
    kills[0] += 1
    assert health.out_of_memory(-signal.SIGKILL)
    assert health.out_of_memory(128 + signal.SIGKILL)
    assert not health.out_of_memory(1)
    assert not health.out_of_memory(-signal.SIGTERM)
    for _ in range(watch.OOM_HISTORY):
        health.signs_of_life()
    assert not health.out_of_memory(-signal.SIGKILL)


def test_vanished_folder_and_exhausted_quota_are_named(tmp_path):
    """L20. The message of a quota names the device, although the file system has room. A limit of files acts alike."""
    assert find_disk_problem(tmp_path) is None
    run = tmp_path / "run"
    assert find_disk_problem(run / "logs").startswith(f"run folder {run} has vanished")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        trouble = find_disk_problem(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert trouble.startswith(f"cannot write to run folder {tmp_path} (")
    assert ", mounted on /" in trouble
    assert trouble.endswith(": File too large")
    assert list(tmp_path.iterdir()) == []
