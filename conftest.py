"""What every test and every lesson needs; plugins and other support are modules of tests/."""

import os

import pytest

# Read when torch is loaded. Two tests run at once, each with a thread for every core: threads that spin while they wait
# take the cores from those that work, and a small run of one process took ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

pytest.register_assert_rewrite("commands", "progress_support", "preflight_support", "shared_data")
# tests/lessons/test_pieces.py runs the tests of the pieces
collect_ignore = ["notebooks/scripts", "notebooks/solutions/scripts"]
pytest_plugins = ["nbval_support", "runtime_support", "worker_support", "ssh_support", "fault_support", "pytester"]
