"""What every test needs; plugins are modules of this folder."""

pytest_plugins = ["nbval_support", "runtime_support", "ssh_support", "fault_support", "pytester"]
