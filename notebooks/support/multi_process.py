"""A temporary folder for a lesson, and a filter for warnings of DGL."""

import subprocess
import sys
import tempfile
import warnings


def hush_dgl() -> None:
    """Hide the advice on CPU affinity, which each loader of each rank prints in each epoch."""
    warnings.filterwarnings("ignore", message="Dataloader CPU affinity")


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that a small process removes when this process ends for whatever reason."""
    folder = tempfile.TemporaryDirectory()
    program = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    folder.watcher = subprocess.Popen(  # type: ignore[attr-defined]
        [sys.executable, "-c", program, folder.name],
        stdin=subprocess.PIPE,  # the kernel closes this pipe when the last process that holds it has ended
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return folder
