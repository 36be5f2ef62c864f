"""The ranks of a cell end, and leave no files, if the kernel is killed."""

import contextlib
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from commands import wait_until
from nbval_support import start_new_kernel

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "06_multi_gpu_node_classification.ipynb"
KILLED_IN = "large = compare_ranks("


def code_cells() -> list[str]:
    cells = json.loads(LESSON.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def connected_ranks(kernel: psutil.Process, seconds: float = 100) -> list[psutil.Process]:
    """Return the kernel's processes when two of them have connections that they did not inherit."""

    def met() -> list[psutil.Process]:
        inherited, found = set(kernel.net_connections("tcp")), kernel.children(recursive=True)
        own = []
        for process in found:
            with contextlib.suppress(psutil.Error):
                own.append({(c.laddr, c.raddr) for c in process.net_connections("tcp") if c.raddr})
        return found if sum(bool(pairs - {(c.laddr, c.raddr) for c in inherited}) for pairs in own) >= 2 else []

    return wait_until(met, "two ranks that are connected", seconds)


@pytest.mark.whole_run
def test_ranks_end_when_kernel_is_killed(nothing_left, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # torchrun leaves an empty folder there, however it ends
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        for cell in code_cells():
            if KILLED_IN in cell:
                client.execute(cell)
                ranks = connected_ranks(psutil.Process(manager.provisioner.pid))
                break
            reply = client.execute_interactive(cell, timeout=240, output_hook=lambda _message: None)
            assert reply["content"]["status"] == "ok", cell
        else:
            raise AssertionError(f"{KILLED_IN!r} is in no cell of {LESSON}")
        # The kernel alone, as the kernel's out-of-memory killer does it. Jupyter's own way ends the whole process group
        # at once, with the tracker that would have removed the semaphores of torch's mp.spawn.
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        assert psutil.wait_procs(ranks, timeout=10)[1] == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
