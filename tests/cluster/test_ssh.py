"""Real ssh connections into emulated machines that run real ssh servers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import heed_ctrl_c, wait_for_event, wait_until

from tutorial_lib.trainer.generations import read_checkpoint

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).parents[1] / "programs" / "guide_script.py"


def guide_arguments(part_config: str, graph_name: str, epochs: int, **options: str) -> list[str]:
    words = ["--ip_config", "ip_config.txt", "--part_config", part_config, "--graph_name", graph_name]
    more = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [*words, "--num_epochs", str(epochs), *more]


@pytest.fixture
def workspace(ssh_lab, partition_of, tmp_path) -> Path:
    """A folder as a user would have it: script, parts and address file."""
    folder = tmp_path / "work space"
    shutil.copytree(partition_of(2).folder, folder / "parts")
    shutil.copy(SCRIPT, folder / "train.py")
    shutil.copy(ssh_lab.ip_config, folder)
    return folder


def launch(lab, workspace: Path, out: Path, *options: str, epochs: int = 2, **script) -> list[str]:
    config = f"parts/{next(p.stem for p in (workspace / 'parts').glob('synthetic*.json'))}.json"
    words = ["python3", "train.py", *guide_arguments(config, "synthetic-products", epochs, **script)]
    base = ["launch", "--workspace", str(workspace), "--part_config", config, "--ip_config", "ip_config.txt"]
    return [*base, "--num_trainers", "1", "--num_servers", "1", *options, "--out", str(out), shlex.join(words)]


def endless(lab, workspace: Path, out: Path) -> subprocess.Popen:
    """A job that has begun to train and does not end by itself."""
    words = launch(lab, workspace, out, epochs=10000)
    command = lab.start(sys.executable, "-m", "tutorial_lib", *words, preexec_fn=heed_ctrl_c)
    wait_for_epoch(out, command)
    return command


def separate_disks(lab, target: Path) -> Path:
    """At this path, each machine gets a folder of its own, as separate disks would be."""
    target.mkdir()
    for machine in lab.machines:
        command = ["mount", "-t", "tmpfs", "none", str(target)]
        assert lab.cluster.popen(machine, command).wait(timeout=10) == 0
    return target


@pytest.mark.long  # lesson 12 copies one
def test_a_workspace_that_is_not_shared_is_copied(ssh_lab, workspace, tmp_path):
    """Into a folder in the home of the login, whose shell prints when it starts.

    With one option of each kind of DGL's tool; the user's ssh configuration has port and key.
    """
    target = separate_disks(ssh_lab, ssh_lab.home / "copy")
    (ssh_lab.home / ".bashrc").write_text("echo Welcome; echo 42; echo '{}'; printf 'no end of line'; echo quota >&2\n")
    options = ["--copy_to", "~/copy", "--num_samplers", "1", "--graph_format", "csc"]
    options += ["--extra_envs", "GUIDE_TITLE=over-ssh", "UNUSED=1"]
    done = ssh_lab.tutorial(*launch(ssh_lab, workspace, tmp_path / "out", *options))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        log = (tmp_path / "out" / f"machine-{rank}" / "trainer-0.log").read_text()
        assert f"over-ssh: rank {rank} epoch 1 loss" in log
    for machine, other in zip(ssh_lab.machines, reversed(range(2)), strict=True):
        listing = ["ls", str(target / "parts"), str(target)]
        there = ssh_lab.cluster.popen(machine, listing, stdout=subprocess.PIPE, text=True).communicate()[0].split()
        assert "train.py" in there
        assert f"part{other}" not in there  # nobody gets another machine's part
    assert os.listdir(target) == []  # here, nothing was written
    assert sorted(os.listdir(tmp_path / "out")) == ["delivery.json", "machine-0", "machine-1"]
    assert left_of_starts(ssh_lab, target) == []
    ssh_lab.assert_nothing_left()
    # Once more, with one part damaged on its machine: only that file is sent again.
    damage = f"printf x >> {shlex.quote(str(target))}/parts/part1/node_feat.dgl"
    assert ssh_lab.cluster.popen(ssh_lab.machines[1], ["sh", "-c", damage]).wait(timeout=10) == 0
    words = launch(ssh_lab, workspace, tmp_path / "out2", "--copy_to", "~/copy")
    done = ssh_lab.tutorial(*words[:-1], "false")
    assert done.returncode == 1, done.stderr
    assert "machine-0: 0 of" in done.stdout
    assert "machine-1: 1 of" in done.stdout


def left_of_starts(lab, target: Path) -> list[str]:
    """Folders of results that are still on the machines."""
    listing = ["sh", "-c", f"ls -A {shlex.quote(str(target))}/.tutorial_lib 2>/dev/null; true"]
    processes = [lab.cluster.popen(m, listing, stdout=subprocess.PIPE, text=True) for m in lab.machines]
    return [name for process in processes for name in process.communicate(timeout=20)[0].split()]


@pytest.mark.long  # test_faults does it without ssh
def test_a_trainer_that_raises_ends_all_machines(ssh_lab, workspace, tmp_path, saw):
    start = time.monotonic()
    done = ssh_lab.tutorial(*launch(ssh_lab, workspace, tmp_path / "out", fault="raise on 1"))
    ended = time.time()
    assert done.returncode == 1, done.stderr
    assert "error: trainer 0 (rank 1) on machine-1: ValueError: a mistake in somebody's script" in done.stderr
    assert time.monotonic() - start < 60
    ssh_lab.assert_nothing_left()
    events = [json.loads(line) for line in (tmp_path / "out/machine-1/events-0.jsonl").read_text().splitlines()]
    raised = next(event["time"] for event in events if event["kind"] == "failure")
    saw("over ssh: a trainer raises", done.stderr.removeprefix("error: "), ended - raised)


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.faults),
        pytest.param(signal.SIGTERM, marks=pytest.mark.faults),
    ],
)
def test_signals_to_the_coordinator_end_all_machines(sent, ssh_lab, workspace, tmp_path, saw):
    command = endless(ssh_lab, workspace, tmp_path / "out")
    os.kill(only_child(command.pid), sent)  # the process itself; `command` is what entered the machine
    start = time.monotonic()
    errors = command.communicate(timeout=60)[1]
    seconds = time.monotonic() - start
    assert seconds < 15
    ssh_lab.assert_nothing_left(seconds=10)
    saw(f"over ssh: {sent.name} to the coordinator", last_line(errors), seconds)


@pytest.mark.faults
def test_an_agent_that_is_killed_leaves_nothing_on_its_machine(ssh_lab, workspace, tmp_path, saw):
    """Its processes die with it; its servers' shared memory is removed by whoever is left."""
    command = endless(ssh_lab, workspace, tmp_path / "out")
    start = time.monotonic()
    kill = ["pkill", "-KILL", "-f", "tutorial_lib.cluster.agent"]  # in that machine's own list of processes
    assert ssh_lab.cluster.popen(ssh_lab.machines[1], kill).wait(timeout=10) == 0
    errors = command.communicate(timeout=60)[1]
    seconds = time.monotonic() - start
    assert errors.startswith("error: agent on machine-1: it was killed, or the ssh connection to it is lost")
    assert seconds < 15
    ssh_lab.assert_nothing_left()
    saw("over ssh: SIGKILL to an agent", errors.removeprefix("error: "), seconds)


@pytest.mark.faults
def test_a_network_that_goes_silent_ends_both_sides(ssh_lab, workspace, tmp_path, saw):
    """Nobody is told; the one side notices by its keep-alives, the other by the kernel's repetitions and the pings."""
    command = endless(ssh_lab, workspace, tmp_path / "out")
    ssh_lab.cluster.cut(ssh_lab.machines[1])
    start = time.monotonic()
    errors = command.communicate(timeout=90)[1]
    seconds = time.monotonic() - start
    assert command.returncode == 1, errors
    assert "machine-1" in errors.splitlines()[0]
    assert seconds < 60
    ssh_lab.assert_nothing_left(seconds=45)  # also on the machine that nobody can reach
    saw("over ssh: the wire cut for good", errors.removeprefix("error: "), seconds)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing: the command itself was killed"])[-1]


def wait_for_epoch(out: Path, command: subprocess.Popen, seconds: float = 120) -> None:
    log = out / "machine-1" / "trainer-0.log"
    wait_until(lambda: log.exists() and "epoch 1 " in log.read_text(), "an epoch", seconds, command)


def only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        ("no key", "Permission denied", "ssh-copy-id"),
        ("unknown host", "Host key verification failed", "Compare the machine's key"),
        ("no server", "Connection refused", "--ssh_port"),
    ],
)
def test_ssh_that_does_not_work_is_explained(change, words, remedy, ssh_lab, workspace, tmp_path, saw):
    if change == "no key":
        (ssh_lab.folder / "authorized_keys").write_text("")
    elif change == "unknown host":
        (ssh_lab.folder / "known_hosts").write_text("")
    port = ["--ssh_port", "2223"] if change == "no server" else []
    done = ssh_lab.tutorial(*launch(ssh_lab, workspace, tmp_path / "out", *port))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ssh to 10.77.0.")
    assert words in done.stderr.splitlines()[0]
    assert remedy in done.stderr
    saw(f"over ssh: {change}", done.stderr.removeprefix("error: "), None)


def train(lab, out: Path, data_root: Path, *options: str) -> list[str]:
    words = ["train", "--scale", "0.005", "--root", str(data_root), "--fanouts", "5,5", "--hidden-size", "32"]
    return [*words, "--ip_config", str(lab.ip_config), "--out", str(out), *options]


@pytest.mark.faults
def test_train_over_ssh_and_resume_on_machines_that_share_nothing(ssh_lab, data_root, tmp_path):
    """Copied, broken off, continued: predictions, checkpoint and logs come home, and the losses go on as they would."""
    target = separate_disks(ssh_lab, tmp_path / "copy")
    options = ["--copy_to", str(target)]
    done = ssh_lab.tutorial(*train(ssh_lab, tmp_path / "run", data_root, "--epochs", "2", *options))
    assert done.returncode == 0, done.stderr
    done = ssh_lab.tutorial(*train(ssh_lab, tmp_path / "run", data_root, "--epochs", "4", "--resume", *options))
    assert done.returncode == 0, done.stderr
    shared = ssh_lab.tutorial(*train(ssh_lab, tmp_path / "whole", data_root, "--epochs", "4"))
    assert shared.returncode == 0, shared.stderr
    resumed, whole = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "whole"))
    assert [e["loss"] for e in resumed["epochs"]] == pytest.approx([e["loss"] for e in whole["epochs"]], rel=1e-4)
    assert (tmp_path / "run" / "predictions.npy").stat().st_size == (
        tmp_path / "whole" / "predictions.npy"
    ).stat().st_size
    assert (tmp_path / "run" / "logs" / "machine-1" / "trainer-0.log").exists()
    assert os.listdir(target) == []
    ssh_lab.assert_nothing_left()


@pytest.mark.faults
def test_a_coordinator_that_is_killed_costs_at_most_one_checkpoint(ssh_lab, data_root, tmp_path, saw):
    """What was at home is whole; ``fetch`` brings the rest when the machines can be reached, and the run goes on."""
    target, run = separate_disks(ssh_lab, tmp_path / "copy"), tmp_path / "run"
    small_batches = ["--batch-size", "20"]  # an epoch takes a second or two, as long as a copy may take
    words = train(ssh_lab, run, data_root, "--copy_to", str(target), "--task", "embedding", *small_batches)
    command = ssh_lab.start(sys.executable, "-m", "tutorial_lib", *words, "--epochs", "1000")
    wait_for_event(run, "checkpoint", command, 4)
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert (done.returncode, "another program is running in" in done.stderr) == (2, True), done.stderr
    saved = wait_for_event(run, "checkpoint", command, 6)
    os.kill(only_child(command.pid), signal.SIGKILL)
    command.communicate(timeout=60)
    ssh_lab.assert_nothing_left(seconds=10)
    home = read_checkpoint(run / "checkpoint")
    assert len(home.epochs) >= saved - 1
    found = f"none: {len(home.epochs)} of {saved} epochs are at home, and fetch brings the rest"
    saw("over ssh: SIGKILL to the coordinator, --copy_to", found, None)

    ssh_lab.cluster.cut(ssh_lab.machines[1])
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: copying from machine-1: ssh: connect to host 10.77.0.2")
    assert f"python -m tutorial_lib fetch {run}" in done.stderr
    assert "machine-0: " in done.stdout
    ssh_lab.cluster.mend(ssh_lab.machines[1])
    assert len(left_of_starts(ssh_lab, target)) == 1
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert done.returncode == 0, done.stderr
    assert "brought home" in done.stdout
    assert left_of_starts(ssh_lab, target) == []
    assert len(read_checkpoint(run / "checkpoint").epochs) >= len(home.epochs)
    done = ssh_lab.tutorial("fetch", str(run), "--trust")
    assert (done.returncode, "nothing is left to fetch" in done.stdout) == (0, True), done.stderr

    epochs = len(read_checkpoint(run / "checkpoint").epochs) + 2
    done = ssh_lab.tutorial(*words, "--epochs", str(epochs), "--resume")
    assert done.returncode == 0, done.stderr
    assert f"continuing after epoch {epochs - 2} " in done.stdout
    result = json.loads((run / "result.json").read_text())
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(epochs))
    assert len(read_checkpoint(run / "checkpoint").epochs) == epochs
    assert left_of_starts(ssh_lab, target) == []


@pytest.mark.faults
def test_two_finales_over_ssh_into_the_same_folder_of_the_machines(ssh_lab, data_root, tmp_path):
    """Each is its own: the second one does not take the events of the first for its own."""
    target = separate_disks(ssh_lab, tmp_path / "copy")
    common = ["finale", "--scale", "0.005", "--epochs", "2", "--fanouts", "5,5", "--hidden-size", "32"]
    common += ["--root", str(data_root), "--ip_config", str(ssh_lab.ip_config), "--copy_to", str(target)]
    for name, scaling in (("first", "none"), ("second", "1,2")):
        done = ssh_lab.tutorial(*common, "--scaling", scaling, "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert [epoch["epoch"] for epoch in result["epochs"]] == [0, 1]
        assert set(result["traffic"]) == {"machine-0", "machine-1"}
        assert (tmp_path / name / "report.html").exists()
    assert "With more machines" in (tmp_path / "second" / "report.html").read_text()
    ssh_lab.assert_nothing_left()


def test_the_doctor_looks_at_every_machine(ssh_lab, partition_of):
    config = str(partition_of(2).config)
    done = ssh_lab.tutorial("doctor", "--ip_config", str(ssh_lab.ip_config), "--part_config", config)
    assert "machine-1" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout
