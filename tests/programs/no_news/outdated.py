"""Replaces ``outdated`` in the kernels of tests. ogb uses this package to look for a newer version, if it exists."""

raise ImportError("no network in tests")
