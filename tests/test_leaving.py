"""Ranks that leave their process group end, and end well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MANY = Path(__file__).with_name("leave_many_times.py")


def test_a_rank_leaves_while_a_thread_still_has_a_tensor():
    """The thread needs Python's lock to free it. torch 2.2's own way waits for the thread with that lock held."""
    command = [sys.executable, str(MANY), "--repetitions", "3", "--unfinished"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 3 repetitions of 2 ranks went wrong" in done.stdout
    assert not done.stderr, done.stderr
