"""``--own-disks``: emulated machines with a private home, /tmp, data and run folder; jobs copy there and back."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import tutorial, wait_for_event, wait_until
from ssh_support import needs_rsync

from tutorial_lib.launcher.backends import persistent
from tutorial_lib.launcher.environment import CHECKOUT
from tutorial_lib.trainer.manifest import read_checkpoint

SMALL = ["--scale", "0.003", "--fanouts", "5,5", "--hidden-size", "16"]


@pytest.fixture
def disk_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the disks of all machines."""
    needs_rsync()
    folder = tmp_path / "all disks"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def lab(emulation, nothing_left, disk_folder: Path) -> Iterator[str]:
    """Two machines with private disks."""
    tutorial("machines", "start", "2", "--own-disks", "--name", "separate", "--ttl", "5m", cwd=disk_folder.parent)
    yield "separate"
    if "separate" in persistent.running_names():
        persistent.stop_machines("separate")


def test_machines_share_no_folder(lab, disk_folder, data_root, tmp_path):
    """Some folders are private, and others are visible and read-only."""
    (run := tmp_path / "run").mkdir()
    private = [str(Path.home()), "/tmp", str(disk_folder), f"{CHECKOUT}/data", f"{CHECKOUT}/runs"]
    read_only = [str(CHECKOUT), f"{CHECKOUT}/tutorial_lib", sys.prefix, sys.base_prefix]
    lines = [f"! test -e {shlex.quote(str(path))}" for path in (run, data_root, CHECKOUT / "data" / "README.md")]
    lines += [f"! test -e {shlex.quote(path)}/mine" for path in private]
    lines += [f"touch {shlex.quote(path)}/mine" for path in private]
    lines += [f"! touch {shlex.quote(path)}/mine 2>/dev/null" for path in read_only]
    lines += [f"{shlex.quote(sys.executable)} -c 'import tutorial_lib.launcher.agent'"]
    for machine in ("machine-0", "machine-1"):
        for_all = " && ".join([f"cd {shlex.quote(str(Path.home()))}", 'test "$PWD" = "$(pwd -P)"', *lines])
        tutorial("on", "--name", lab, machine, "sh", "-c", f"set -x; {for_all}")
    assert not any(Path(path, "mine").exists() for path in [*private, *read_only])
    assert len(list(disk_folder.glob("*/*/**/runs/mine"))) == 2  # on the disk of this computer
    tutorial("machines", "stop", lab)
    wait_until(lambda: not list(disk_folder.iterdir()), "the disks to be removed")


def test_resume_after_kill_of_command_with_private_disks(emulation, nothing_left, disk_folder, data_root, tmp_path):
    run = tmp_path / "run"
    words = ["train", "--emulate", "2", "--own-disks", *SMALL, "--root", str(data_root), "--out", str(run)]
    words += ["--batch-size", "20"]
    command = subprocess.Popen([sys.executable, "-m", "tutorial_lib", *words, "--epochs", "1000"])
    wait_for_event(run, "checkpoint", command, 2)
    wait_until(lambda: (run / "checkpoint" / "manifest.json").exists(), "a downloaded checkpoint", 30, command)
    os.kill(command.pid, signal.SIGKILL)
    command.wait(timeout=20)
    wait_until(lambda: not list(disk_folder.glob("tutorial_lib-*")), "the disks to be removed")
    done = len(read_checkpoint(run / "checkpoint").manifest.epochs)
    printed = tutorial("train", "--resume", "--trust", "--out", str(run), "--epochs", str(done + 1)).stdout
    assert re.search(r"machine-1: \d+ files copied, checksums verified", printed)
    assert len(read_checkpoint(run / "checkpoint").manifest.epochs) == done + 1
    for name in ("predictions.npy", "logs/resume-1/machine-1/trainer-0.log"):
        assert (run / name).is_file()
    assert not list(disk_folder.glob("tutorial_lib-*"))
