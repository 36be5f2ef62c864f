"""Disks without space for a partition, and files of killed processes."""

import os
import signal
import subprocess
import sys

import pytest
from shared_data import tiny_dataset

from tutorial_lib.errors import WaitedTooLong
from tutorial_lib.files import lock_folder
from tutorial_lib.partition import partition_dataset

# Arguments: a folder for a small disk, the data folder.
ON_A_SMALL_DISK = """
import os, subprocess, sys
from tutorial_lib.tools.cli import main
disk, root = sys.argv[1:]
words = ["partition", "--dataset", "synthetic-products", "--scale", "0.005", "--parts", "2", "--root", root]
for options in ("size=4m", "remount,ro"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
    try:
        main([*words, "--method", "random", "--out", f"{disk}/parts"])
    except SystemExit as end:
        print(end.code, os.listdir(disk), file=sys.stderr)
"""


def test_a_full_or_read_only_disk_is_named_with_a_remedy(small_dataset, data_root, tmp_path):
    """D18. The test uses a mount namespace, which an ordinary user may have too. No file is left."""
    if (refused := subprocess.run(["unshare", "-Urm", "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"needs a mount namespace: {refused.stderr.strip()}")
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path / "disk"), str(data_root)]
    done = subprocess.run(["unshare", "-Urm", *command], capture_output=True, text=True, timeout=240)
    remedy = "Free space there, or choose another folder: --out for partition, --root for train."
    for problem in ("No space left on device", "Read-only file system"):
        text = f"error: cannot write the partition {tmp_path}/disk/parts: {problem}\nwhat to do: {remedy}\n"
        assert f"{text}2 []\n" in done.stderr


def test_remains_of_killed_processes_are_removed(tmp_path, monkeypatch):
    """D18. Another process that writes a partition there is waited for."""
    if (child := os.fork()) == 0:
        monkeypatch.setattr("tutorial_lib.partition.folder.write_json", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        partition_dataset(tiny_dataset(), 2, tmp_path / "q", method="random")
    os.waitpid(child, 0)
    (killed,) = tmp_path.glob(".q.*")
    assert (killed / "part0").is_dir()
    with lock_folder(tmp_path), monkeypatch.context() as patch:
        patch.setattr("tutorial_lib.files.WAIT_SECONDS", 0.1)
        with pytest.raises(WaitedTooLong, match=f"which is writing to {tmp_path}"):
            partition_dataset(tiny_dataset(), 2, tmp_path / "q", method="random")
    assert killed.exists()
    partition_dataset(tiny_dataset(), 2, tmp_path / "q", method="random")
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
