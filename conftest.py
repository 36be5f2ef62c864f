"""Settings and plugins for all tests and lessons. The plugins are modules of tests/."""

import os

import pytest

# torch reads this variable when it is loaded. Two tests run at once, each with one thread per core. Threads that spin
# while they wait would slow down other threads. Without this setting, a small run took ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

pytest.register_assert_rewrite("commands", "progress_support", "preflight_support", "shared_data")
# tests/lessons/test_pieces.py runs the tests of the pieces
collect_ignore = ["notebooks/scripts", "notebooks/solutions/scripts"]
pytest_plugins = ["nbval_support", "runtime_support", "worker_support", "ssh_support", "fault_support", "pytester"]
