"""Inside one rank of a job: joining, seeds, devices, the loop, events and checkpoints. ``__main__`` is what it runs."""
