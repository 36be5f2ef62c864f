"""The lock of /dev/shm and the cleanup after killed jobs, with real processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from commands import wait_until

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.job.dgl import SHM_PATTERNS
from tutorial_lib.launcher.checks import check_shm
from tutorial_lib.launcher.jobspec import JobSpec
from tutorial_lib.launcher.shm import PREFIX, SHM, clean_leftovers, job_files, lock_shm

pytestmark = pytest.mark.usefixtures("nothing_left")
FEATURE = "node~_N~test-shm-feat-kvdata-"
FILES = ["dgl.graphbolt.test-shm_data.lock", FEATURE, "test-shm", "test-shm_node_node_map"]
JOB = f"""
import time
from tutorial_lib.job.dgl import SHM_PATTERNS
from tutorial_lib.launcher.shm import SHM, lock_shm
with lock_shm(SHM_PATTERNS) as sockets:
    (sockets / "listener").touch()
    for name in {FILES}:
        (SHM / name).write_bytes(b"x" * 4096)
    print("ready", flush=True)
    time.sleep(100)
"""
USER = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
time.sleep(100)
"""
SPEC = JobSpec([], [], "", "", 0, shm_patterns=SHM_PATTERNS)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """``start(code, *arguments, before=[])`` starts a process that prints "ready", and kills it at the end."""
    processes = []

    def start(code: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
        command = [*before, sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        kill(process)
    clean_leftovers(SHM_PATTERNS)
    for name in FILES:
        (SHM / name).unlink(missing_ok=True)


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def test_running_job_keeps_its_lock_and_files(start):
    """L34. The lock of a stopped process counts, too."""
    job = start(JOB)
    job.send_signal(signal.SIGSTOP)
    for use in (lambda: clean_leftovers(SHM_PATTERNS), lambda: lock_shm(SHM_PATTERNS).__enter__()):
        with pytest.raises(WaitedTooLong, match=f"waited 0.5 s for process {job.pid} .*, which is writing to /dev/shm"):
            use()
    finding = check_shm(SPEC, 0)
    assert f"another job is running on this machine: waited 0.5 s for process {job.pid}" in finding.detail
    assert job_files(SHM_PATTERNS) == FILES
    assert "--emulate N" in finding.remedy


def test_files_of_a_killed_job_are_removed_with_its_sockets(start):
    """L35. The next job removes the files of a killed agent, and keeps the files of others."""
    other = SHM / "test-shm-other"
    other.write_bytes(b"x")
    try:
        kill(start(JOB))
        assert clean_leftovers(SHM_PATTERNS) == FILES
        assert other.exists()
        assert not list(SHM.glob(f"{PREFIX}*"))
        assert clean_leftovers(SHM_PATTERNS) == []
    finally:
        other.unlink()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare program")
def test_reused_pid_does_not_hold_the_lock(emulation, start):
    """L34. Containers can share /dev/shm and count their processes separately, and a PID can be used again."""
    inside = start(JOB, before=("unshare", "--user", "--pid", "--fork", "--kill-child"))
    with pytest.raises(WaitedTooLong):
        clean_leftovers(SHM_PATTERNS)
    kill(inside)
    wait_until(lambda: check_shm(SPEC, 0).status == "ok", "the end of the namespace, although process 1 exists here", 5)
    assert job_files(SHM_PATTERNS) == []


def test_older_shm_files_are_kept(start):
    """L34. Foreign files stay."""
    (SHM / FEATURE).write_bytes(b"x")
    assert clean_leftovers(SHM_PATTERNS) == []
    time.sleep(0.05)
    with lock_shm(SHM_PATTERNS):
        (SHM / FILES[-1]).write_bytes(b"x")
    assert job_files(SHM_PATTERNS) == [FEATURE]
    finding = check_shm(SPEC, 0)
    assert finding.status == "fail"
    assert finding.remedy.endswith(f"rm '{SHM / FEATURE}'")


def test_mapped_shm_file_is_kept(start):
    """L34. DGL's own launch tool locks nothing, and its job can use files of the same names as a dead job."""
    job = start(JOB)
    user = start(USER, str(SHM / FEATURE))
    kill(job)
    assert clean_leftovers(SHM_PATTERNS) == [name for name in FILES if name != FEATURE]
    assert job_files(SHM_PATTERNS) == [FEATURE]
    with subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {user.pid}"]):
        assert check_shm(SPEC, 0).detail == "removed 1 files that a killed job left in /dev/shm"
    assert check_shm(SPEC, 0).detail == "no files of another job in /dev/shm"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_files_of_other_users_do_not_block_the_job(make):
    """L34. Opening a pipe would block."""
    paths = [SHM / f"{PREFIX}hostile", SHM / FEATURE]
    for path in paths:
        make(path)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534, follow_symlinks=False)
    try:
        code = f"from tutorial_lib.launcher.shm import *; print(clean_leftovers(['{FEATURE}']))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        assert os.geteuid() != 0 or (done.stdout == "[]\n" and all(map(os.path.lexists, paths)))
    finally:
        subprocess.run(["rm", "-rf", *paths], check=True)
