"""Ranks that leave their process group end, and end well."""

import subprocess
import sys
from pathlib import Path

MANY = Path(__file__).parents[1] / "programs" / "leave_many_times.py"


def test_a_rank_leaves_while_a_thread_still_has_a_tensor():
    """D15. A rank can exit while a thread of gloo still holds a tensor and waits for the GIL."""
    command = [sys.executable, str(MANY), "--repetitions", "1", "--unfinished"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 repetitions of 2 ranks went wrong" in done.stdout
    assert not done.stderr, done.stderr
