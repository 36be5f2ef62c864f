"""Runs of ``train`` and ``launch`` on this computer: backend, run folder, copies, display and result."""
