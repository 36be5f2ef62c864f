"""Describe a job, run commands on its machines, wait for its processes and end them, for cluster.py (lesson 09)."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass, field
from subprocess import DEVNULL, PIPE


@dataclass
class Job:
    """Describe a job. Machine m has the servers of part m, and servers and trainers are numbered machine by machine."""

    machines: dict  # name -> IPv4 address, in the order of the parts
    config: str  # part config, GRAPH.json
    command: list  # the words that start a server or a trainer, such as ["python3", "train.py"]
    folder: str  # for the logs
    remote: str = "sh -c"  # runs a shell command on the machine {}: here, or "python3 attached.py ssh {}"
    servers: int = 1  # on each machine
    trainers: int = 1  # on each machine
    samplers: int = 0  # of each trainer
    load_seconds: float = 300  # limit until all servers listen
    port: int = 30050  # of the first server on each machine. The next servers use the next ports
    ip_config: str = "ip_config.txt"
    shm: str = "/dev/shm"
    extra: dict = field(default_factory=dict)  # more variables of all processes


def shell(job, machine):
    """Return the words that precede a shell command (one more word), so that it runs on a machine."""
    return job.remote.replace("{}", machine).split()


def call(job, machine, command):
    """Run a shell command on a machine and return its output. Return "" if it has not ended after 20 s."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run([*shell(job, machine), command], stdin=DEVNULL, stdout=PIPE, text=True, timeout=20).stdout
    return ""


def wait(pending, processes, seconds):
    """Wait until the function ``pending`` returns an empty list. Call it every 0.2 s.

    Args:
        processes: dict of name -> ``Popen``, where a name is "machine-1/trainer-1".

    Raises:
        RuntimeError: a process has failed, which means that its exit code is neither None nor 0. The message is
            "machine-1/trainer-1 failed with exit code 3". A failure counts even if nothing is pending.
        TimeoutError: the list is not empty after this number of seconds. The message contains its entries.
    """
    end = time.monotonic() + seconds
    while True:
        left = pending()
        for name, process in processes.items():
            if process.poll() not in (None, 0):
                raise RuntimeError(f"{name} failed with exit code {process.returncode}")
        if not left:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds} s: {', '.join(left)}")
        time.sleep(0.2)


def signal_group(process, number):
    """Send a signal to a process and its children. Return False if all of them have ended. Number 0 sends nothing."""
    process.poll()  # otherwise, an ended process would stay in its group
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
