"""Ranks that leave their process group end, and end well."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tutorial_lib.trainer.session import collective_limit

MANY = Path(__file__).parents[1] / "programs" / "leave_many_times.py"


def test_a_rank_leaves_while_a_thread_still_has_a_tensor():
    """D15. A rank can exit while a thread of gloo still holds a tensor and waits for the GIL."""
    command = [sys.executable, str(MANY), "--repetitions", "1", "--unfinished"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 repetitions of 2 ranks went wrong" in done.stdout
    assert not done.stderr, done.stderr


def test_the_limit_of_collectives_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TUTORIAL_COLLECTIVE_SECONDS", raising=False)
    assert collective_limit() == timedelta(minutes=10)
    monkeypatch.setenv("TUTORIAL_COLLECTIVE_SECONDS", "2.5")
    assert collective_limit() == timedelta(seconds=2.5)
