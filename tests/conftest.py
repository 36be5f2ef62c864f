"""What every test needs; plugins and other support are modules of this folder."""

import pytest

pytest.register_assert_rewrite("commands", "preflight_support", "shared_data")
pytest_plugins = ["nbval_support", "runtime_support", "worker_support", "ssh_support", "fault_support", "pytester"]
