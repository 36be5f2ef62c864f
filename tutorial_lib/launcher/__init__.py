"""Start, watch and stop the processes of a job, with an agent on each machine and one coordinator."""
