"""The program of one rank of a job: session, seeds, device, loop, events and checkpoints, started by ``__main__``."""
