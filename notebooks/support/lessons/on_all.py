"""Run a command on all machines of a set at the same time: ``python -m support.lessons.on_all NAME COMMAND...``."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tutorial_lib.launcher.backends.persistent import PersistentBackend


def main(name: str, *command: str) -> int:
    """Print the lines of all machines with their names, and return the first exit code that is not 0."""
    backend = PersistentBackend(name)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    jobs = {machine.name: backend.popen(machine, command, **pipes) for machine in backend.machines}

    def wait_for(machine: str) -> int:
        for line in jobs[machine].stdout or ():
            sys.stdout.buffer.write(f"[{machine}] ".encode() + line.rstrip(b"\n") + b"\n")
            sys.stdout.buffer.flush()
        return jobs[machine].wait()

    with ThreadPoolExecutor(len(jobs)) as pool:
        try:
            codes = list(pool.map(wait_for, jobs))
        finally:  # after Ctrl-C
            for job in jobs.values():
                job.terminate()
    return next(filter(None, codes), 0) % 256


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
