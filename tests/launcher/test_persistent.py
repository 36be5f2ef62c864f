"""Persistent clusters: commands start, use, cut and stop them, and no files or processes remain."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from commands import PYTHONPATH_OF_ALL, ordinary_user, wait_until
from commands import tutorial as run_command
from ssh_support import SSHD

from tutorial_lib.errors import InputError, retry_until_timeout
from tutorial_lib.launcher.agents import Agents
from tutorial_lib.launcher.backends import persistent
from tutorial_lib.launcher.backends.persistent import PersistentBackend, describe_machines, find_program, parse_ttl

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tutorial_lib"]
pytestmark = pytest.mark.cluster


def tutorial(*words: str, code: int = 0, **options: Any) -> str:
    """Run ``python -m tutorial_lib WORDS``, check its exit code and return its output."""
    done = run_command(*words, code=code, timeout=60, **options)
    return done.stdout + done.stderr


@pytest.fixture
def lab(emulation, nothing_left, tmp_path: Path) -> Iterator[str]:
    """A running cluster of two machines, which stops at the end of the test."""
    tutorial("machines", "start", "2", "--wire", "1gbit", "--shm", "500MB", "--name", "lab", "--ttl", "5m")
    yield "lab"
    if "lab" in persistent.running_names():
        persistent.stop_machines("lab")


def commands_on(machine: str) -> str:
    """Return the command lines of all processes of a machine, without ps."""
    return tutorial("on", machine, "sh", "-c", r"cat /proc/[0-9]*/cmdline | tr '\0' ' '")


REACHES = """
import errno, psutil, socket
s = socket.socket()
s.settimeout(10)  # the kernel repeats a lost packet after one second, and gives up after three
print(s.connect_ex(("machine-1", 9)) == errno.ECONNREFUSED, psutil.net_if_stats()["eth0"].isup)
"""


def test_on_behaves_like_ssh(lab):
    """Output, exit code, standard input and signals are passed on."""
    assert tutorial("on", "machine-1", "hostname") == "machine-1\n"
    on_all = [sys.executable, "-m", "support.lessons.on_all", lab]  # lessons call this program
    lines = subprocess.run([*on_all, "hostname"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert sorted(lines.splitlines()) == ["[machine-0] machine-0", "[machine-1] machine-1"]
    assert subprocess.run([*on_all, "sh", "-c", "test $(hostname) = machine-0"], timeout=60).returncode == 1
    tutorial("on", "machine-0", "sh", "-c", "exit 7", code=7)
    assert tutorial("on", "machine-0", "wc", "-c", input="12345") == "5\n"
    assert "there is no machine 'machine-7'" in tutorial("on", "machine-7", "true", code=2)
    assert "cannot start 'no-such-program'" in tutorial("on", "machine-0", "no-such-program", code=127)
    command = subprocess.Popen([*PROGRAM, "on", "machine-1", "sleep", "1000"])
    wait_until(lambda: "sleep 1000" in commands_on("machine-1"), "the command to run there")
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=20) == -signal.SIGTERM
    assert "sleep 1000" not in commands_on("machine-1")


def test_cut_mend_and_change_links(lab):
    """L33. A cut at the bridge drops packets, and the network interface of the machine remains up."""
    if (tc := find_program("tc")) is None:
        pytest.skip("needs the program tc (package iproute2)")
    for order, reached in [("cut", "False True\n"), ("mend", "True True\n")]:
        tutorial("machines", order, "machine-1")
        assert tutorial("on", "machine-0", sys.executable, "-c", REACHES) == reached
        assert ("cut" in tutorial("machines", "list")) == (order == "cut")
    tutorial("machines", "wire", "machine-1", "200mbit")
    assert [each["wires"] for each in json.loads(tutorial("machines", "list", "--json"))] == [["1gbit", "200mbit"]]
    assert "rate 200Mbit" in tutorial("on", "machine-1", tc, "qdisc", "show", "dev", "eth0")
    tutorial("machines", "wire", "machine-1", "unshaped")
    assert "tbf" not in tutorial("on", "machine-1", tc, "qdisc", "show", "dev", "eth0")
    shm = tutorial("on", "machine-1", "df", "--output=size", "-B1", "/dev/shm").split()[-1]
    assert abs(int(shm) - 500_000_000) < 8192  # whole pages


def test_cluster_names_are_unique_and_jobs_exclusive(lab, tmp_path):
    """L33. A second job is refused, and a command next to the job is not."""
    assert "machines named 'lab' are running" in tutorial("machines", "start", "3", "--name", "lab", code=2)
    late = PersistentBackend("lab")
    with PersistentBackend("lab") as cluster:
        assert [machine.address for machine in cluster.machines] == ["10.77.0.1", "10.77.0.2"]
        with pytest.raises(InputError, match=f"the machines 'lab' are used by process {os.getpid()}"):
            PersistentBackend("lab").__enter__()
        assert tutorial("on", "machine-0", "hostname") == "machine-0\n"  # a command beside the job
        assert f"process {os.getpid()}" in tutorial("machines", "list")
        printed = tutorial("machines", "stop")
    assert f"warning: this ends the job on lab: process {os.getpid()} (" in printed
    assert "lab: switched off" in printed
    assert "no machines named 'lab' are running" in tutorial("machines", "stop", code=2)
    with pytest.raises(InputError, match="has been switched off"), late, Agents(late, tmp_path):
        pass  # the machines have ended while the command loaded its data


def test_torchrun_example_of_docs(lab, tmp_path):
    """The command of docs/own-machines.md runs on the machines of this test."""
    (loop,) = re.findall(r"^    (for k in .*?wait)$", (ROOT / "docs/own-machines.md").read_text(), re.M | re.S)
    code = "import os\nimport torch.distributed as d\nd.init_process_group('gloo')\n"
    code += "os.write(1, f'rank {d.get_rank()}\\n'.encode())\nd.barrier()"  # at once: both ranks share a pipe
    (tmp_path / "my_script.py").write_text(code)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of an environment that is active
    more = {"PATH": path, "PYTHONPATH": PYTHONPATH_OF_ALL, "TMPDIR": str(tmp_path)}  # torchrun leaves folders there
    options = {"cwd": tmp_path, "env": {**os.environ, **more}, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(["bash", "-c", loop], **options)
    assert {"rank 0", "rank 1"} <= set(done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize(
    ("running", "words", "says"),
    [
        (["mine"], ["on", "machine-0", "true"], "no machines named 'mine' are running"),  # gone in between
        (["mine", "other"], ["on", "machine-0", "true"], "Running: mine, other. Start some with"),
        (["lab", "mine"], ["machines", "cut", "machine-0"], "no machines named 'lab' are running"),
    ],
)
def test_default_name_is_the_only_running_cluster(running, words, says, run_here, monkeypatch, tmp_path):
    """The error names the set that was chosen, because none is really running."""
    monkeypatch.setattr(persistent, "running_names", lambda: running)
    monkeypatch.setattr(persistent, "REGISTRY", tmp_path)
    done = run_here(*words)
    assert (done.returncode, says in done.stderr) == (2, True)


def test_shell_uses_terminal_of_caller(lab):
    """The shell manages jobs, passes Ctrl-C to the program, and exits without waiting for background jobs."""
    restore_default_signals = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  a test in the background ignores it
    options = {"timeout": 60, "encoding": "utf-8", "preexec_fn": restore_default_signals}
    shell = pexpect.spawn(sys.executable, [*PROGRAM[1:], "on", "machine-0", "bash"], **options)
    shell.expect("[#$] ")
    shell.sendline("hostname; set -m; echo rea''dy")
    shell.expect("ready")
    assert "machine-0" in shell.before
    shell.sendline("sleep 1000; echo sta''tus $?")
    wait_until(lambda: "sleep 1000" in commands_on("machine-0"), "the sleep to run", 60)
    for _left in retry_until_timeout("Ctrl-C to end the sleep", 60):
        shell.sendintr()  # again, because the shell may not have given the terminal to the program yet
        if "sleep 1000" not in commands_on("machine-0"):
            break
    shell.sendline("")
    shell.expect("[#$] ")
    shell.sendline("sleep 1000 & exit 5")
    assert shell.wait() == 5
    shell.close()


@pytest.mark.parametrize("end", ["ttl", signal.SIGTERM, signal.SIGKILL])
def test_cluster_ends_after_ttl_or_with_its_daemon(emulation, nothing_left, end):
    """L32. The machines end after --ttl and when their daemon is killed. Their folder is removed."""
    tutorial("machines", "start", "1", "--name", "short", "--ttl", "9s" if end == "ttl" else "5m")
    found = describe_machines("short")
    if end != "ttl":
        os.kill(found.pid, end)
    wait_until(lambda: "short" not in persistent.running_names(), "the end of the machines")
    wait_until(lambda: not Path(found.folder).exists(), "the folder to be removed")


def test_ordinary_user_starts_uses_and_stops_cluster(emulation, nothing_left):
    """L31. Tests of root use user 65534. Other users do not see the cluster."""
    python, user = ordinary_user()
    with tempfile.TemporaryDirectory() as folder:  # only root may enter the test's own temporary folder
        os.chmod(folder, 0o777)
        environment = {**os.environ, "HOME": folder, "PYTHONPATH": PYTHONPATH_OF_ALL}

        def run_as_user(*words: str) -> str:
            command, options = [python, "-B", "-m", "tutorial_lib", *words], {"env": environment, "cwd": folder, **user}
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout + done.stderr

        run_as_user("machines", "start", "2", "--name", "lab", "--wire", "1gbit", "--shm", "100MB", "--ttl", "5m")
        try:
            assert run_as_user("on", "machine-1", "hostname") == "machine-1\n"
            run_as_user("machines", "cut", "machine-1")
            assert run_as_user("on", "machine-0", "python3", "-c", REACHES) == "False True\n"
            run_as_user("machines", "mend", "machine-1")
            if os.geteuid() == 0:
                assert persistent.running_names() == []
                assert "no machines named 'lab' are running" in tutorial("machines", "stop", "lab", code=2)
            words = ["--on", "lab", "--scale", "0.002", "--epochs", "1", "--batch-size", "100", "--fanouts", "5,5"]
            run_as_user("train", *words, "--root", f"{folder}/data", "--out", f"{folder}/run")
            result = json.loads(Path(folder, "run", "result.json").read_text())
            assert list(result["bytes_sent"]) == ["machine-0", "machine-1"]
            assert run_as_user("on", "machine-1", "ls", "/dev/shm") == ""
        finally:
            assert "lab: switched off" in run_as_user("machines", "stop", "lab")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be two users")
def test_cluster_descriptions_of_other_users_are_refused(run_here, monkeypatch, tmp_path):
    """L33. Another user cannot redirect the commands of this user to machines of theirs."""
    monkeypatch.setattr(persistent, "REGISTRY", tmp_path)
    folder = persistent.description_path("")
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    for words in (["machines", "list"], ["machines", "start", "--name", "mine"], ["on", "machine-0", "true"]):
        done = run_here(*words)
        assert done.returncode == 2
        assert f"{folder} belongs to another user" in done.stderr


@pytest.mark.skipif(not SSHD, reason="needs sshd")
def test_interrupted_start_leaves_no_folder(emulation, nothing_left, tmp_path, monkeypatch):
    """A slow ssh-keygen delays the start when the machines already run."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh-keygen").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexec sleep 60\n")
    (tmp_path / "bin" / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    start = subprocess.Popen([*PROGRAM, "machines", "start", "2", "--ssh", "--name", "early"])
    wait_until(lambda: (tmp_path / "called").exists(), "the call of ssh-keygen")
    start.send_signal(signal.SIGTERM)
    assert start.wait(timeout=60) == 143
    wait_until(lambda: "early" not in persistent.running_names(), "the end of the machines")
    wait_until(lambda: not [*tmp_path.glob("tutorial_lib-*")], "the folder to be removed")


def test_parse_ttl():
    assert [parse_ttl(text) for text in ("90m", "2d")] == [5400, 172800]
    for wrong in ("8", "0s", "900d"):
        with pytest.raises(InputError, match="--ttl"):
            parse_ttl(wrong)
