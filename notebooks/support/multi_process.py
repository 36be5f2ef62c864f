"""Warnings of DGL that the lessons hide, and a folder for a lesson."""

import subprocess
import sys
import tempfile
import warnings


def hush_dgl() -> None:
    """No advice on CPU affinity from each loader of each rank in each epoch."""
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity")


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process, however it ends: a small one waits for that, then removes the folder."""
    folder = tempfile.TemporaryDirectory()
    program = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    folder.watcher = subprocess.Popen(  # type: ignore[attr-defined]
        [sys.executable, "-c", program, folder.name],
        stdin=subprocess.PIPE,  # closed by the kernel when the last process that holds it has ended
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return folder
