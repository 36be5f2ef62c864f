"""Real ssh connections into emulated machines with private disks that run real ssh servers."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from commands import PYTHONPATH_OF_ALL, restore_default_signals, wait_for_event, wait_until

from tutorial_lib.trainer.manifest import read_checkpoint

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).parents[1] / "programs" / "guide_script.py"
TARGET = Path("/tmp/copy")  # on the machines


@pytest.fixture
def workspace(ssh_lab, partition_of, tmp_path) -> Path:
    """A workspace with script, partition and address file."""
    folder = tmp_path / "work space"
    shutil.copytree(partition_of(2).folder, folder / "parts")
    shutil.copy(SCRIPT, folder / "train.py")
    shutil.copy(ssh_lab.ip_config, folder)
    return folder


def launch(workspace: Path, out: Path, *options: str, epochs: int = 2) -> list[str]:
    config = f"parts/{next(p.stem for p in (workspace / 'parts').glob('synthetic*.json'))}.json"
    words = ["python3", "train.py", "--ip_config", "ip_config.txt", "--part_config", config]
    words += ["--graph_name", "synthetic-products", "--num_epochs", str(epochs)]
    base = ["launch", "--workspace", str(workspace), "--part_config", config, "--ip_config", "ip_config.txt"]
    base += ["--num_trainers", "1", "--num_servers", "1", "--copy_to", "~/copy", "--out", str(out)]
    return [*base, *options, shlex.join(words)]


def start_endless_job(lab, workspace: Path, out: Path) -> subprocess.Popen:
    """Start a job without end, and return it when it trains."""
    words = launch(workspace, out, epochs=10000)
    command = lab.start(sys.executable, "-m", "tutorial_lib", *words, preexec_fn=restore_default_signals)
    copy = lab.on_disks(lab.home / "copy")[1]

    def trained() -> bool:
        return any("epoch 1 " in log.read_text() for log in copy.glob("results/*/machine-1/trainer-0.log"))

    wait_until(trained, "an epoch", 120, command)
    return command


def remaining_results(lab, target: Path) -> list[str]:
    """Return the folders of results that are still on the machines."""
    return [path.name for disk in lab.on_disks(target) for path in disk.glob("results/*")]


def test_workspace_is_copied_over_ssh(ssh_lab, workspace, tmp_path):
    """L24. The folder is in the home of the login. For programs, its shell prints to standard error only.

    The job uses an option of each kind of DGL's tool. The ssh configuration of the user has port and key.
    """
    target = ssh_lab.home / "copy"
    bashrc = "echo quota >&2; [[ $- == *i* ]] || return; echo Welcome\n"
    ssh_lab.write_in_homes(".bashrc", bashrc)
    options = ["--num_samplers", "1", "--graph_format", "csc", "--extra_envs", "GUIDE_TITLE=over-ssh", "UNUSED=1"]
    done = ssh_lab.tutorial(*launch(workspace, tmp_path / "out", *options))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        log = (tmp_path / "out" / f"machine-{rank}" / "trainer-0.log").read_text()
        assert f"over-ssh: rank {rank} epoch 1 loss" in log
    for disk, other in zip(ssh_lab.on_disks(target), (1, 0), strict=True):
        assert (disk / "train.py").exists()
        assert not (disk / "parts" / f"part{other}").exists()  # nobody gets another machine's part
    assert sorted(os.listdir(tmp_path / "out")) == ["events.jsonl", "machine-0", "machine-1"]
    assert remaining_results(ssh_lab, target) == []
    ssh_lab.assert_nothing_left()


@pytest.mark.parametrize(
    "fault",
    ["SIGKILL to the coordinator", "SIGINT to the coordinator", "SIGKILL to an agent", "the link is cut for good"],
)
def test_a_fault_ends_the_job_on_all_machines(fault, ssh_lab, workspace, tmp_path, record_fault):
    """This includes an unreachable machine, which notices retransmissions and missing pings."""
    command = start_endless_job(ssh_lab, workspace, tmp_path / "out")
    start = time.monotonic()
    if fault == "SIGKILL to an agent":  # in that machine's own list of processes
        kill = ["pkill", "-KILL", "-f", "tutorial_lib.launcher.agent"]
        assert ssh_lab.cluster.popen(ssh_lab.machines[1], kill).wait(timeout=10) == 0
    elif fault == "the link is cut for good":
        ssh_lab.cluster.change_link(ssh_lab.machines[1], "cut")
    else:
        os.kill(only_child(command.pid), signal.Signals[fault.split()[0]])  # `command` enters the machine
    errors = command.communicate(timeout=150)[1]
    seconds = time.monotonic() - start
    if "coordinator" not in fault:
        assert command.returncode == 1
        assert "machine-1" in errors.splitlines()[0]
    ssh_lab.assert_nothing_left(seconds=60)
    seen = errors.strip() or "nothing: the command itself was killed"
    record_fault(f"over ssh: {fault}", seen.splitlines()[0].removeprefix("error: "), seconds)


def only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        ("no key", "Permission denied", "ssh-copy-id"),
        ("unknown host", "Host key verification failed", "Compare the key of the machine"),
        ("no server", "Connection refused", "--ssh_port"),
    ],
)
def test_ssh_failures_have_remedies(change, words, remedy, ssh_lab, workspace, tmp_path, record_fault):
    """L25. ssh asks no questions; the message has a remedy."""
    if change == "no key":
        for path in ssh_lab.on_disks(ssh_lab.folder / "authorized_keys"):
            path.write_text("")
    elif change == "unknown host":
        (ssh_lab.folder / "known_hosts").write_text("")
    port = ["--ssh_port", "2223"] if change == "no server" else []
    done = ssh_lab.tutorial(*launch(workspace, tmp_path / "out", *port))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ssh to 10.77.0.")
    assert words in done.stderr.splitlines()[0]
    assert remedy in done.stderr
    record_fault(f"over ssh: {change}", done.stderr.removeprefix("error: "), None)


def test_bashrc_output_and_home_modules_are_ignored(ssh_lab, partition_of, record_fault):
    """L24. A shell prints lines, half a line and JSON before the program does. The home has modules of the user."""
    prints = "echo Welcome; echo 42; echo '[\"x\"]'; printf '\\377 no end of line'; echo quota >&2; cd /tmp\n"
    ssh_lab.write_in_homes(".bashrc", prints)
    for name in ("random", "json", "copy", "tempfile"):
        ssh_lab.write_in_homes(f"{name}.py", "raise SystemExit('a file of the user was imported')\n")
    part = partition_of(2)
    for disk in ssh_lab.on_disks(part.folder):
        shutil.copytree(part.folder, disk)
    done = ssh_lab.tutorial("doctor", "--ip_config", str(ssh_lab.ip_config), "--part_config", str(part.config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine-1" in done.stdout
    record_fault("over ssh: a .bashrc that prints", "none: what it prints is left out", None)


def test_user_name_is_not_parsed_as_ssh_option(ssh_lab, tmp_path, record_fault):
    """L25. The ssh client does not run a command that a user name contains."""
    witness = tmp_path / "witness"
    for user in (f"-oProxyCommand=touch {witness}", f"x -oProxyCommand=touch {witness}"):
        done = ssh_lab.tutorial("doctor", "--ip_config", str(ssh_lab.ip_config), f"--ssh_username={user}")
        [problem] = [line for line in done.stdout.splitlines() if "ssh to 10.77.0." in line]
        assert list(tmp_path.glob("witness*")) == []
    record_fault("over ssh: --ssh_username that is an option of ssh", problem.partition("machines: ")[2], None)


def test_different_homes_and_noisy_rsync_login_are_refused(ssh_lab, workspace, tmp_path, record_fault):
    """L24. rsync cannot skip the text on standard output, and the error names the file to change."""
    ssh_lab.write_in_homes(".bashrc", f'[ "$(hostname)" = machine-1 ] && HOME={tmp_path}/other\n')
    done = ssh_lab.tutorial(*launch(workspace, tmp_path / "homes"))
    assert "error: --copy_to ~/copy: the machines have different homes" in done.stderr
    ssh_lab.write_in_homes(".bashrc", "echo Welcome; cd /tmp\n")
    done = ssh_lab.tutorial(*launch(workspace, tmp_path / "out"))
    error = done.stderr.splitlines()[0].removeprefix("error: ")
    assert error == "copying to machine-0: protocol version mismatch -- is your shell clean?"
    assert ".bashrc must print nothing to programs" in done.stderr
    record_fault("over ssh: files are copied to a login whose .bashrc prints", error, None)


def train(lab, out: Path, data_root: Path, *options: str) -> list[str]:
    """Return the arguments of ``train`` on a small graph with ``--copy_to``."""
    words = ["train", "--scale", "0.003", "--root", str(data_root), "--fanouts", "5,5", "--hidden-size", "32"]
    return [*words, "--ip_config", str(lab.ip_config), "--copy_to", str(TARGET), "--out", str(out), *options]


def epochs_of(run: Path) -> list[int]:
    return [epoch["epoch"] for epoch in json.loads((run / "result.json").read_text())["epochs"]]


def assert_downloaded(lab, run: Path, *names: str) -> None:
    """Check that all logs and these files were downloaded, and that no results are left on the machines."""
    for name in ("result.json", *(f"logs/machine-{k}/trainer-0.log" for k in range(2)), *names):
        assert (run / name).is_file(), name
    assert len(read_checkpoint(run / "checkpoint").manifest.epochs) == len(epochs_of(run))
    assert remaining_results(lab, TARGET) == []


def test_killed_coordinator_loses_at_most_one_checkpoint(ssh_lab, data_root, tmp_path, record_fault):
    """Downloads are complete. ``fetch`` downloads the rest when the machines can be reached, and the run continues."""
    run = tmp_path / "run"
    small_batches = ["--batch-size", "10"]  # an epoch takes a few seconds, longer than a copy even on a busy computer
    words = train(ssh_lab, run, data_root, "--task", "embedding", *small_batches)
    command = ssh_lab.start(sys.executable, "-m", "tutorial_lib", *words, "--epochs", "1000")
    wait_for_event(run, "checkpoint", command, 4)
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert (done.returncode, f"which is writing to {run}" in done.stderr) == (1, True), done.stderr
    saved = wait_for_event(run, "checkpoint", command, 6)
    os.kill(only_child(command.pid), signal.SIGKILL)
    command.communicate(timeout=60)
    ssh_lab.assert_nothing_left(seconds=10)
    home = read_checkpoint(run / "checkpoint").manifest
    assert len(home.epochs) >= saved - 1
    found = f"none: {len(home.epochs)} of {saved} epochs were downloaded, and fetch downloads the rest"
    record_fault("over ssh: SIGKILL to the coordinator, --copy_to", found, None)

    ssh_lab.cluster.change_link(ssh_lab.machines[1], "cut")
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: copying from machine-1: ssh: connect to host 10.77.0.2"), done.stderr
    assert f"python -m tutorial_lib fetch {run}" in done.stderr
    ssh_lab.cluster.change_link(ssh_lab.machines[1], "mend")
    assert len(remaining_results(ssh_lab, TARGET)) == 2  # until everything is here
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert done.returncode == 0, done.stderr
    assert "all results are in" in done.stdout
    assert remaining_results(ssh_lab, TARGET) == []
    assert len(read_checkpoint(run / "checkpoint").manifest.epochs) >= len(home.epochs)
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert (done.returncode, "nothing is left to fetch" in done.stdout) == (0, True), done.stderr

    epochs = len(read_checkpoint(run / "checkpoint").manifest.epochs) + 2
    done = ssh_lab.tutorial(*words, "--epochs", str(epochs), "--resume")
    assert done.returncode == 0, done.stderr
    assert f"continuing after epoch {epochs - 2} " in done.stdout
    assert epochs_of(run) == list(range(epochs))
    assert_downloaded(ssh_lab, run, "checkpoint/model.safetensors")


@pytest.mark.timeout(600)
def test_commands_of_own_machines_page(ssh_lab, tmp_path):
    """The commands of docs/own-machines.md run unchanged on the login node, in a folder with a user's program."""
    page = (Path(__file__).parents[2] / "docs" / "own-machines.md").read_text()
    (block,) = [text for text in re.findall(r"(?:^(?:    .*)?\n)+", page, re.MULTILINE) if "--copy_to" in text]
    (tmp_path / "job").mkdir()
    shutil.copy(SCRIPT, tmp_path / "job" / "my_script.py")
    path = f"{Path(sys.executable).parent}:{ssh_lab.env['PATH']}"
    environment = {**ssh_lab.env, "PATH": path, "PYTHONPATH": PYTHONPATH_OF_ALL}
    done = ssh_lab.run("sh", "-exc", textwrap.dedent(block), env=environment, cwd=str(tmp_path), seconds=570)
    assert done.returncode == 0, done.stdout + done.stderr
    assert epochs_of(tmp_path / "runs" / "first") == [0, 1, 2]
    assert "continuing after epoch 2 " in done.stdout
    assert "all results are in" in done.stdout or "nothing is left to fetch" in done.stdout
    for run in ("runs/first", "runs/finale"):
        assert (tmp_path / run / "predictions.npy").is_file()
        assert len(read_checkpoint(tmp_path / run / "checkpoint").manifest.epochs) == len(epochs_of(tmp_path / run))
    assert "rank 1 epoch 1 loss" in (tmp_path / "runs" / "script" / "machine-1" / "trainer-0.log").read_text()
    assert remaining_results(ssh_lab, ssh_lab.home / "course") == []
    ssh_lab.assert_nothing_left()
