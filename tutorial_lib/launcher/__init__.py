"""Where a job runs: machines, the ways to start one agent on each, and the coordinator that watches them."""
