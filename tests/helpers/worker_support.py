"""For ``pytest -n auto``: each worker of pytest-xdist runs in namespaces that ``programs/alone.py`` creates."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from nbval_support import why_no_emulation

ALONE = Path(__file__).parents[1] / "programs" / "alone.py"
WORKER_BYTES = 3 << 30  # a job on two machines, and the test that looks at it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than cores, because tests often wait, but no more than the memory allows. A host without
    namespaces gets one worker, because jobs share /dev/shm. Otherwise, pytest-xdist's variable sets the number.
    """
    if why_no_emulation() is not None:
        return 1
    if named := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(named)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores + 1, psutil.virtual_memory().available // WORKER_BYTES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Start each worker through ``alone.py``, where the host allows it."""
    if why_no_emulation() is None:
        command = shlex.join([sys.executable, str(ALONE), sys.executable])
        specs[:] = [type(specs[0])(f"popen//python={command}") for _ in specs]
