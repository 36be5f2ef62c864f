"""Where a partition cannot be written, and what a killed process leaves there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tutorial_lib.files import lock_now
from tutorial_lib.partition.folder import FOLDER, unfinished_folder

# Arguments: a folder for a small disk, the data folder.
ON_A_SMALL_DISK = """
import os, subprocess, sys
from tutorial_lib.tools.cli import main
disk, root = sys.argv[1:]
words = ["partition", "--dataset", "synthetic-products", "--scale", "0.005", "--parts", "2", "--root", root]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
for method in ("kaminpar", "random", "read-only"):
    if method == "read-only":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "remount,ro", "none", disk], check=True)
    try:
        main([*words, "--method", method.replace("read-only", "random"), "--out", f"{disk}/{method}"])
    except SystemExit as end:
        print(method, end.code, os.listdir(disk), file=sys.stderr)
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Tables of a graph of six nodes."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"{k},{(k + 1) % 6}\n" for k in range(6)))
    np.save(folder / "label.npy", np.arange(6) % 2)
    np.save(folder / "feat.npy", np.ones((6, 2), np.float32))
    return folder


def test_a_full_or_read_only_disk_is_named_with_a_remedy(small_dataset, data_root, tmp_path):
    """D18. In a mount namespace, which an ordinary user may have too: nothing of it is left."""
    if (refused := subprocess.run(["unshare", "-Urm", "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"needs a mount namespace: {refused.stderr.strip()}")
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path / "disk"), str(data_root)]
    done = subprocess.run(["unshare", "-Urm", *command], capture_output=True, text=True, timeout=240)
    elsewhere = "Choose another folder: --out for partition, --root for train."
    for method in ("kaminpar", "random", "read-only"):
        problem, remedy = "No space left on device", f"Free space there. {elsewhere}"
        if method == "read-only":
            problem, remedy = "Read-only file system", elsewhere
        text = f"error: cannot write the partition {tmp_path}/disk/{method}: {problem}\nwhat to do: {remedy}\n"
        assert f"{text}{method} 2 []\n" in done.stderr


def test_what_killed_processes_have_left_is_removed(graph, run_here, tmp_path):
    """Not what a living process writes, which has it locked, whatever the number in its name; and through no link."""
    if (child := os.fork()) == 0:
        with unfinished_folder(tmp_path / "q", print) as folder:
            (folder / "part0").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (killed,) = tmp_path.glob(".q-*")
    reused, other = (tmp_path / f".{name}-{os.getpid()}-0123abcd" for name in ("q", "p"))
    living = tmp_path / ".q-1-0123abcd"
    for folder in (reused, living, other, tmp_path / "kept"):
        folder.mkdir()
        (folder / "file").touch()
    (tmp_path / ".q-2-4567cdef").symlink_to(tmp_path / "kept")
    handle = os.open(living, FOLDER)
    try:
        assert lock_now(handle)
        done = run_here("partition", "--dataset", str(graph), "--parts", "2", "--out", "q", "--method", "random")
    finally:
        os.close(handle)
    assert done.returncode == 0
    for folder in (killed, reused):
        assert f"removed {folder}, which a killed process had left\n" in done.stderr
        assert not folder.exists()
    assert done.stderr.count("removed") == 2
    for folder in (living, other, tmp_path / "kept"):
        assert (folder / "file").exists()
    assert sorted(path.name for path in tmp_path.glob(".q-*")) == [".q-1-0123abcd", ".q-2-4567cdef"]
